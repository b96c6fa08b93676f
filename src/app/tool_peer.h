// Tool peers: was a connection made by a program of a tool (of this or another Aetheris process)?
//
// A tool runs as our user. With access to the owner's socket it could approve its own calls and
// create keys. So connections are attributed to the process that made them (proc.h: origin_of), and
// those of tools are refused.
// Not detected: a process that another program started for the tool (systemd-run, cron, docker,
// ssh), and one whose supervisor and Aetheris process are both gone.
// A TCP connection of our own user counts as a tool's unless another process is found that has its
// socket.
// Threads: any.
#pragma once

namespace ae::app {

// For a Unix socket. True also if the connecting process is gone, since it cannot be identified.
bool is_tool_on_socket(int fd);

// For a TCP connection from this machine, found by its socket. True also if no process has that
// socket any more, if the kernel cannot look up sockets, or if our user made it and no process
// whose files we can read has it.
bool is_tool_on_loopback(int fd);

}  // namespace ae::app
