"""Weights as the files of a checkpoint hold them: plain, or quantised in one of several formats."""
