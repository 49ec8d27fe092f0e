"""Tools of the notebooks: training, plots, threads, and launching kernels."""
