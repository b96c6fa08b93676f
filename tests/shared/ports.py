"""Ports for servers that a test starts, ends and starts again."""
import socket


def reserve_port():
    """(socket, port) of 127.0.0.1. While the socket is open, the system gives the port to no other process. A server
    that sets SO_REUSEADDR can listen there, since this socket does not listen."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved, reserved.getsockname()[1]
