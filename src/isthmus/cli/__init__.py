"""Arguments in, exit code out: 0 done, 1 failed, 2 bad arguments or config.

A command is one module with ``add``, one line in ``main``, and imports what it needs only when it runs, so that help
and small commands do not load torch.
"""
