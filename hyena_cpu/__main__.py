"""`python -m hyena_cpu` is the `hyena-cpu` program."""

import sys

from .cli import main

sys.exit(main())
