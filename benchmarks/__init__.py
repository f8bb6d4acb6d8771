"""Measurements. They print figures and prove nothing: what must hold is a test."""
