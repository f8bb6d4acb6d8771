"""Programs by layer, for CPUs: a layer of a step is a few programs, which compile in seconds."""
