"""The check of a chat template, with a limit of two seconds."""

from __future__ import annotations

import sys

from worker.bases import template_check

if __name__ == "__main__":
    template_check.CPU_SECONDS = 2
    sys.exit(template_check.main())
