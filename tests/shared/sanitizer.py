"""What a test asks of the sanitizer of the process that it starts."""

import os


def sanitizer(option):
    """The environment with one more option. Of what a sanitizer keeps of freed memory (`quarantine_size_mb`) a test that weighs a
    process wants little; nobody can look for leaks (`detect_leaks`) while a tracer looks on."""
    return {"ASAN_OPTIONS": ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), option]))}
