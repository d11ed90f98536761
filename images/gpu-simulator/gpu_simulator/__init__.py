"""A device plugin that serves declared cards as HAMi's NVIDIA plugin serves real ones."""
