#!/usr/bin/env python3
"""Checks numbers in RFC 8785 form: a second implementation, from Python's repr.

  jcs_numbers.py < LINES      each line: 16 hex digits of the double's bits, a space, the text to check

Prints the first ten that differ; ends with 1 if any does.
"""
import struct
import sys


def es6(number):
    """ECMAScript's Number::toString: repr has the same shortest digits, laid out otherwise."""
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0)  # digits before the decimal point
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    tail = "." + digits[1:] if count > 1 else ""
    return f"{sign}{digits[0]}{tail}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def main():
    wrong = 0
    for line in sys.stdin:
        bits, text = line.split()
        number = struct.unpack(">d", bytes.fromhex(bits))[0]
        if es6(number) != text:
            wrong += 1
            if wrong <= 10:
                print(f"{bits}: {text}, but Python has {es6(number)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
