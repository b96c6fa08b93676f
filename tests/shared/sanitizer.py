"""Options of the sanitizer in the processes of a test."""

import os


def sanitizer(option):
    """The environment with one more option. A test that measures memory sets a small `quarantine_size_mb`; leaks cannot be
    detected (`detect_leaks`) under a tracer."""
    return {"ASAN_OPTIONS": ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), option]))}
