"""The project's own decoder: fused projections, one prefill a group, a shared prefix cache."""
