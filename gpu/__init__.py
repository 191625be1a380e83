"""Where arrays live and how exact they are: namespaces, devices, kernels."""
