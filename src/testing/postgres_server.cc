#include "testing/postgres_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <grp.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace ae::testing {
namespace {

std::string bin_folder() {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/lib/postgresql", none)) {
    if (std::filesystem::exists(entry.path() / "bin/initdb")) {
      found.push_back((entry.path() / "bin").string());
    }
  }
  AE_CHECK(!found.empty(), "no PostgreSQL server here: install the Debian package postgresql");
  return *std::ranges::max_element(found);
}
std::string program(const std::string& name) { return fmt::format("{}/{}", bin_folder(), name); }

// PostgreSQL refuses to run as root.
const passwd* unprivileged() {
  if (::geteuid() != 0) return nullptr;
  const passwd* user = ::getpwnam("postgres");
  AE_CHECK(user != nullptr, "no user postgres: install the Debian package postgresql");
  return user;
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

PostgresServer::PostgresServer(std::vector<std::string> settings)
    : PostgresServer(std::string(), std::move(settings)) {}

PostgresServer::PostgresServer(const std::string& copy_of, std::vector<std::string> settings)
    : settings_{"listen_addresses=127.0.0.1",
                "shared_buffers=32MB",
                "max_connections=60",
                "max_wal_size=256MB",
                "wal_level=replica",
                "max_wal_senders=3",
                "recovery_init_sync_method=syncfs"} {
  settings_.insert(settings_.end(), settings.begin(), settings.end());
  create_folder();
  choose_port();
  if (copy_of.empty()) {
    run("initdb", {"-D", folder_ + "/data", "-U", "aetheris", "-A", "trust", "--no-sync",
                   "--encoding=UTF8", "--locale=C"});
  } else {
    run("pg_basebackup",
        {"-d", copy_of, "-D", folder_ + "/data", "-R", "-X", "stream", "-c", "fast", "--no-sync"});
  }
  start();
}

PostgresServer::~PostgresServer() {
  stop(SIGQUIT);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void PostgresServer::stop(int signal) {
  if (process_ <= 0) return;
  ::kill(process_, signal);
  int status = 0;
  while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  process_ = -1;
}

void PostgresServer::start() {
  std::filesystem::remove(folder_ + "/data/postmaster.pid");
  std::vector<std::string> command = {
      program("postgres"), "-D", folder_ + "/data", "-p", std::to_string(port_), "-k", folder_};
  for (const std::string& setting : settings_) {
    command.push_back("-c");
    command.push_back(setting);
  }
  process_ = spawn(command);
  for (int i = 0; i < 6000; ++i) {
    if (is_ready()) return;
    int status = 0;
    AE_CHECK(::waitpid(process_, &status, WNOHANG) == 0, "PostgreSQL ended: " + log());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  AE_CHECK(false, "PostgreSQL does not start: " + log());
}

void PostgresServer::create_database(const std::string& name, const std::string& encoding) const {
  run("createdb", {"-h", folder_, "-p", std::to_string(port_), "-U", "aetheris", "-T", "template0",
                   "-E", encoding, name});
}

std::string PostgresServer::run(const std::string& name, std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), program(name));
  const std::string out = folder_ + "/out";
  const pid_t child = spawn(arguments, out);
  int status = 0;
  ::waitpid(child, &status, 0);
  AE_CHECK(status == 0, fmt::format("{} failed: {}{}", name, read(out), log()));
  return read(out);
}

void PostgresServer::create_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "aetheris-postgres-XXXXXX").string();
  AE_CHECK(::mkdtemp(name.data()) != nullptr, name);
  folder_ = name;
  if (const passwd* user = unprivileged()) {
    AE_CHECK(::chown(folder_.c_str(), user->pw_uid, user->pw_gid) == 0, folder_);
  }
}

void PostgresServer::choose_port() {
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  AE_CHECK(::bind(probe, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
           ::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  ::close(probe);
}

// Starts the program; its output goes to `out`, "" = the log.
pid_t PostgresServer::spawn(const std::vector<std::string>& command, const std::string& out) const {
  const passwd* user = unprivileged();
  std::vector<char*> args;
  args.reserve(command.size() + 1);
  for (const std::string& arg : command) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  const std::string to = out.empty() ? folder_ + "/log" : out;
  const pid_t child = ::fork();
  AE_CHECK(child >= 0);
  if (child != 0) return child;
  if (user != nullptr && (::setgroups(0, nullptr) != 0 || ::setgid(user->pw_gid) != 0 ||
                          ::setuid(user->pw_uid) != 0)) {
    ::_exit(126);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGQUIT);
  const int file =
      ::open(to.c_str(), O_WRONLY | O_CREAT | (out.empty() ? O_APPEND : O_TRUNC), 0600);
  ::dup2(file, 1);
  ::dup2(file, 2);
  if (::chdir(folder_.c_str()) == 0) ::execv(args[0], args.data());
  ::_exit(127);
}

bool PostgresServer::is_ready() const {
  std::ifstream file(folder_ + "/data/postmaster.pid");
  std::string line, last;
  while (std::getline(file, line)) last = line;
  return last.starts_with("ready") ||
         (last.starts_with("standby") &&
          std::filesystem::exists(fmt::format("{}/.s.PGSQL.{}", folder_, port_)));
}

std::string PostgresServer::log() const { return read(folder_ + "/log"); }

}  // namespace ae::testing
