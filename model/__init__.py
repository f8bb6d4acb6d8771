"""The accelerator: decoder, weights, attention, compiled programs and the engine that drives them."""
