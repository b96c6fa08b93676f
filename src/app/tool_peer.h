// Who connects to us: a program of a tool, of this or another Aetheris process, or another process?
//
// A tool runs as our user. If it could use the owner's socket it could approve its own calls and make keys. So its
// connections are told apart by the process that made them (proc.h: origin_of), and refused.
// What cannot be told: a process that another program started for the tool (systemd-run, cron, docker, ssh), and one
// whose supervisor and Aetheris process are both gone.
// A TCP connection of our own user counts as a tool's unless another process is found that has its socket.
// Threads: any.
#pragma once

namespace ae::app {

// Of a Unix socket. True also when the process that connected is gone: then there is no way to tell.
bool is_tool_on_socket(int fd);

// Of a TCP connection from this machine, found by its socket. True also when no process has that socket any more, when the
// kernel does not look sockets up, and when our user made it and no process that lets us look has it.
bool is_tool_on_loopback(int fd);

}  // namespace ae::app
