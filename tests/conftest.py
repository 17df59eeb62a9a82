"""Before any test imports torch: threads wait politely, as in the command line tool."""

from __future__ import annotations

import os

from specbatch.hardware.threads import prepare_environment

prepare_environment(os.environ)
