"""`python -m kernels_hub`: the command line, where the script `kernels-hub` is not on the path."""

from kernels_hub.cli import main

main()
