// PostgresServer: a PostgreSQL server for one test, in a temporary folder, on loopback and a Unix
// socket.
//
// It uses the installed server (Debian: postgresql), with fsync on and little memory. As root it
// runs as the user `postgres`, which the package creates. It ends with the test. Without an
// installed server the test program fails and names the missing package. Threads: one.
#pragma once

#include <fmt/core.h>
#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

namespace ae::testing {

class PostgresServer {
 public:
  // `settings`: as in postgresql.conf, for example "fsync=off".
  explicit PostgresServer(std::vector<std::string> settings = {});
  // A replica that follows `primary`, copied from it now.
  static PostgresServer* follow(PostgresServer& primary) { return new PostgresServer(primary); }
  ~PostgresServer();
  PostgresServer(const PostgresServer&) = delete;
  PostgresServer& operator=(const PostgresServer&) = delete;

  // Connects over the Unix socket; `more` is appended to the parameters ("&options=…").
  std::string url(const std::string& database = "postgres", const std::string& more = {}) const {
    return fmt::format("postgres:///{}?host={}&port={}&user=aetheris{}", database, folder_, port_,
                       more);
  }
  int port() const { return port_; }          // also on 127.0.0.1
  pid_t process() const { return process_; }  // the parent of all other server processes

  // SIGQUIT: immediately, like a power failure; SIGINT: ends the sessions first.
  void stop(int signal);
  void start();

  void create_database(const std::string& name, const std::string& encoding = "UTF8") const;
  // Runs one of the server's programs to its end; returns its output.
  std::string run(const std::string& name, std::vector<std::string> arguments) const;

 private:
  PostgresServer(const std::string& copy_of, std::vector<std::string> settings);
  explicit PostgresServer(PostgresServer& primary) : PostgresServer(primary.url(), {}) {}

  void create_folder();
  void choose_port();
  pid_t spawn(const std::vector<std::string>& command, const std::string& out = {}) const;
  bool is_ready() const;
  std::string log() const;

  std::vector<std::string> settings_;
  std::string folder_;
  int port_ = 0;
  pid_t process_ = -1;
};

}  // namespace ae::testing
