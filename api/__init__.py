"""The control plane and the one front door: files, jobs, models, and the chat proxy. Never imports the GPU stack."""
