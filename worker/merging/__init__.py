"""The merge engine: an adapter folded into its base tensor by tensor, with bounded memory and the same bytes everywhere."""
