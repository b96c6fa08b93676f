// Options: a parsed command line, independent of the parser.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ae::cli {

struct Options {
  std::string command;  // "run", "jobs", …

  // every command
  std::string store;
  bool store_given = false;  // on the command line, not through AETHERIS_STORE
  bool json = false;

  // positional arguments
  std::vector<std::string> files;  // check takes several
  std::string file, agent, id, key, data, resolution, folder, shell, policies;
  bool has_data = false;

  // run
  std::string input, job_id, idempotency_key, durability = "fused", grace = "10s", signing_key;
  std::string message;             // run
  std::vector<std::string> pairs;  // run: KEY=VALUE, KEY:=JSON
  bool has_message = false;
  bool was_looked_up = false;  // this process has already looked up the job
  bool has_input = false, detach = false, only = false, dry_run = false, verbose = false;
  std::vector<std::string> labels;  // run: to set; jobs: to filter
  std::vector<std::string> capabilities, queue_limits;
  std::string queue, fair_by, notify, wait_store;
  bool no_fair_by = false;
  std::int64_t priority = 0;
  std::string deadline;
  std::vector<std::string> budget;  // NAME=AMOUNT

  // serve, worker
  std::string listen = "127.0.0.1:7070", worker_listen, workers, log, lease = "30s";
  std::string tls_cert, tls_key, rate;
  bool insecure_http = false;
  bool quiet = false;  // no line per job
  bool watch = false;  // serve: reload changed files

  // keys
  std::string action, role, name, expires;

  // lists and views
  std::string status, event_class, event_type, cursor, at, after, limit;
  std::vector<std::string> keys;  // verify: trusted signing keys
  bool follow = false, partial_output = false, graph = false;
  bool stuck = false, in_doubt = false;
  std::string older_than;

  // control requests
  std::string reason, note, message_id, wait_type, channel, of_try, arguments;
  bool buffer = false, no_compensate = false;
  std::string tokens, cost, model_calls, tool_calls, wall;  // budget

  // doctor
  bool accept_rollback = false, restored = false, sandbox = false;

  // redact, audit
  std::vector<std::string> values;
  bool all = false, proves = false;
  bool keep_blind = false, tree = false, keep_forks = false;

  // prune, with older_than, status, agent, labels and dry_run
  std::string archive;

  // check
  bool accept = false, diff = false;

  // rebuild, with job_id; migrate
  bool check_only = false;

  // restore
  bool nothing_lost = false, skip_verify = false;

  // fork, retry, plan
  std::vector<std::string> drop;
  bool repeat_effects = false;
  std::vector<std::string> repeat;
};

// The result of parsing.
struct Parsed {
  std::optional<Options> options;  // run the command with these
  int code = 0;                    // or exit with this code: help was printed
  std::optional<Error> error;      // or print this error (usage, unsupported)
  std::string usage = {};          // … and this line: "usage: aetheris retry [OPTIONS] ID [FILE]"
  bool json = false;               // print the error as JSON
};
Parsed parse(int argc, char** argv);

}  // namespace ae::cli
