"""Several chips that compute one model: what each of them has, and where they exchange numbers."""
