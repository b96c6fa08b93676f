#!/usr/bin/env python3
"""Runs the MCP conformance suite against our client and server: `./dev conformance`, without OAuth unless slow tests are enabled.

tests/conformance/baseline.yml lists the expected failures with their reasons. Any other failure fails this test.
"""
import os
import pathlib
import sys

RUN = pathlib.Path(__file__).resolve().parent / "conformance/run.py"
WORDS = [] if os.environ.get("AETHERIS_SLOW_TESTS") == "1" else ["--quick"]
os.execv(sys.executable, [sys.executable, str(RUN), *WORDS])
