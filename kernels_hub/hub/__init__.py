"""The client of a Hub: references to kernels, fetching, locks, bundles and publishing."""
