"""What surrounds attention in a layer, by kernels for TPUs: norms, projections and rotation."""
