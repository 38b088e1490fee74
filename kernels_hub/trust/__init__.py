"""Keys, signatures, and the policy that says whose code may run."""
