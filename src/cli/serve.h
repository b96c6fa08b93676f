// The server of `serve`, which `dev` runs with workers of its own.
//
// Threads: one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/instance.h"
#include "app/reloader.h"
#include "cli/process_options.h"
#include "cli/service.h"
#include "cli/terminal.h"

namespace ae::cli {

struct ServeOptions : ServiceOptions {
  ServeOptions() { accepts_code = true; }
  std::string listen = "127.0.0.1:7070", tls_cert, tls_key, rate, code_versions;
  bool watch = false, insecure_http = false;
};

// What a command adds to the server.
class ServerPart {
 public:
  virtual ~ServerPart() = default;
  // As ServedAgents::Callbacks.
  virtual void on_worker(const routines::Definitions& offered,
                         const std::vector<agents::Diagnostic>& faults, bool is_in_use) = 0;
  // False: the server prints the report.
  virtual bool on_reload(const app::Reloader::Report& report) = 0;
  // Prints on stderr what was started; the server listens at `url`.
  virtual void print_start(app::Instance& instance, const std::string& url) = 0;
  // The server accepts requests; it runs until `end`. Fails before anything has run.
  virtual Status begin(app::Instance& instance) = 0;
  // This process no longer runs the job (RuntimeObserver::on_released).
  virtual void on_released(const JobId& job) = 0;
  // The jobs have been released.
  virtual void end() = 0;
};
// `part`: nullptr = none. Returns the exit code.
int run_server(const ServeOptions& options, Terminal& terminal, ServerPart* part);

}  // namespace ae::cli
