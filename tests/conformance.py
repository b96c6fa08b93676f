#!/usr/bin/env python3
"""The conformance suite of MCP against our client and server: `./dev conformance`, without OAuth where time is short.

What stands in tests/conformance/baseline.yml is not passed, and why; anything else that fails is a failure.
"""
import os
import pathlib
import sys

RUN = pathlib.Path(__file__).resolve().parent / "conformance/run.py"
WORDS = [] if os.environ.get("AETHERIS_SLOW_TESTS") == "1" else ["--quick"]
os.execv(sys.executable, [sys.executable, str(RUN), *WORDS])
