#!/usr/bin/env node
// aetheris …: starts the program of the package for this platform, aetheris-linux-x64, or the one that AETHERIS_BIN
// names. Signals are passed on; the exit code is the program's. AETHERIS_LAUNCHER is this process: if it is killed, the
// program receives SIGTERM from the kernel.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { constants } from "node:os";
import { dirname, join } from "node:path";

const PACKAGE = `aetheris-${process.platform}-${process.arch}`;
const CANNOT_START = 127; // also of a loader that does not find a library

function fail(message: string): never {
  process.stderr.write(`aetheris: ${message}\n`);
  process.exit(CANNOT_START);
}

function program(): string {
  if (process.env["AETHERIS_BIN"]) return process.env["AETHERIS_BIN"];
  try {
    return join(dirname(createRequire(import.meta.url).resolve(`${PACKAGE}/package.json`)), "aetheris");
  } catch {
    fail(
      `the package ${PACKAGE} is not installed. If there is none for this platform, build the program and name it in AETHERIS_BIN`,
    );
  }
}

const path = program();
const env = { ...process.env, AETHERIS_LAUNCHER: String(process.pid) };
const child = spawn(path, process.argv.slice(2), { stdio: "inherit", env });
// Ctrl-C of a terminal reaches the program itself: it is not passed on a second time.
for (const signal of ["SIGTERM", "SIGHUP", "SIGINT"] as const) {
  process.on(signal, () => {
    if (signal !== "SIGINT" || !process.stdin.isTTY) child.kill(signal);
  });
}
child.on("error", (error) => fail(`${path}: ${error.message}`));
child.on("exit", (code, signal) => {
  if (code === CANNOT_START)
    process.stderr.write(`aetheris: the libraries that ${path} needs are named in the README of ${PACKAGE}\n`);
  process.exit(code ?? 128 + (constants.signals[signal as NodeJS.Signals] ?? 0));
});
