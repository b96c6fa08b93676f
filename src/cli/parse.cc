// The command line's grammar. The only file that uses CLI11.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "agents/agents_file.h"
#include "agents/diagnostics.h"
#include "app/instance.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/options.h"

namespace ae::cli {
namespace {

constexpr const char* kFooter =
    "\nGet started: aetheris init demo && cd demo && aetheris run agents.yaml name=Ada\n\n"
    "Exit codes: 0 done, 1 the job failed or was cancelled, 2 usage or invalid input, 3 not "
    "found,\n"
    "4 blocked (waiting, parked, outcome unknown), 5 conflict, 6 verification failed, 7 store "
    "unavailable.\n"
    "AETHERIS_STORE sets the default of --store. With AETHERIS_URL, commands send their requests "
    "to "
    "that server;\n"
    "the API key is in AETHERIS_API_KEY, or in the file that AETHERIS_API_KEY_FILE names.\n"
    "`aetheris COMMAND --help` and `aetheris help COMMAND` show details.";

// The groups of commands in --help, each with the names of its commands.
constexpr std::pair<const char*, std::string_view> kGroups[] = {
    {"Run", " init run serve worker mcp check "},
    {"Inspect", " jobs job events trace transcript replay verify "},
    {"Respond", " signal message approvals approve reject resolve "},
    {"Control", " pause resume budget cancel fork retry plan "}};
constexpr const char* kOtherGroup = "Maintain";

constexpr std::string_view kFutureCommands[] = {"exec"};

struct FutureFlag {
  std::string_view command, flag;
};
constexpr FutureFlag kFutureFlags[] = {{"run", "--workers"}};

// The first argument that is not an option: the command. A --store before it is skipped with its
// value.
std::string_view command_of(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--store") {
      ++i;
    } else if (!word.starts_with('-')) {
      return word;
    }
  }
  return {};
}

std::optional<Error> unsupported_yet(int argc, char** argv) {
  const std::string_view command = command_of(argc, argv);
  if (std::ranges::find(kFutureCommands, command) != std::end(kFutureCommands)) {
    return Error{Code::unsupported, "`aetheris " + std::string(command) +
                                        "` comes with a later version; `aetheris --help` lists "
                                        "what there is"};
  }
  for (const FutureFlag& future : kFutureFlags) {
    if (future.command != command) continue;
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word == "--") break;
      if (word != future.flag && !word.starts_with(std::string(future.flag) + "=")) continue;
      return Error{Code::unsupported,
                   "`" + std::string(future.flag) + "` comes with a later version of Aetheris"};
    }
  }
  return std::nullopt;
}

class Grammar {
 public:
  explicit Grammar(Options& options) : options_(options) {
    app_.require_subcommand(1);
    app_.failure_message(CLI::FailureMessage::simple);
    app_.get_formatter()->column_width(34);
    app_.get_formatter()->label("SUBCOMMAND", "COMMAND");
    app_.footer(kFooter);
    app_.set_version_flag("--version", "aetheris " + std::string(app::kVersion));
    app_.fallthrough();
    app_.add_option("--store", options_.store,
                    "sqlite:PATH (default sqlite:.aetheris/aetheris.db), postgres://… or memory:")
        ->envname("AETHERIS_STORE");
    app_.add_flag("--json", options_.json, "print one JSON value; `events -f` prints one per line");
    add_run_commands();
    add_query_commands();
    add_control_commands();
    add_fork_commands();
    add_maintenance_commands();
    add_help_commands();
  }

  CLI::App& app() { return app_; }
  // "usage: aetheris retry [OPTIONS] ID [FILE]"; of the program if `command` is not a command.
  std::string usage(const std::string& command) {
    const std::string help =
        has_command(command) ? app_.get_subcommand(command)->help("aetheris") : app_.help();
    constexpr std::string_view kMark = "Usage: ";
    const std::size_t from = help.find(kMark) + kMark.size();
    return "usage: " + help.substr(from, help.find('\n', from) - from);
  }
  bool has_command(const std::string& command) const {
    return !app_.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == command; })
                .empty();
  }

 private:
  CLI::App* command(const char* name, const char* what, const char* example) {
    CLI::App* sub = app_.add_subcommand(name, what);
    sub->group(kOtherGroup);
    for (const auto& [group, names] : kGroups) {
      if (names.find(" " + std::string(name) + " ") != names.npos) sub->group(group);
    }
    sub->fallthrough();
    sub->footer("\nWith every command: --store URL (or AETHERIS_STORE), --json\n\nExample: " +
                std::string(example));
    sub->callback([this, name] { options_.command = name; });
    return sub;
  }
  void policies(CLI::App* sub) {
    sub->add_option("--policies", options_.policies,
                    "a policies file: its rules come before those of the agents file");
  }
  void wait_store(CLI::App* sub) {
    sub->add_option("--wait-store", options_.wait_store,
                    "how long a PostgreSQL store that is down is waited for at the start (default: "
                    "without end; 0s = not at all)");
  }
  void notify(CLI::App* sub, const char* description) {
    sub->add_option(
           "--notify", options_.notify,
           std::string("a program (no shell) to start for each pending request, ") + description)
        ->check(not_empty());
  }
  static void positional(CLI::App* sub, const char* name, std::string& into, const char* what,
                         bool required = true) {
    CLI::Option* option = sub->add_option(name, into, what);
    if (required) option->required();
  }

  // An empty value comes from an unset variable, and would silently disable the option.
  static CLI::Validator not_empty() {
    return CLI::Validator(
        [](const std::string& text) {
          return text.empty() ? std::string("it must not be empty") : std::string();
        },
        "", "not empty");
  }

  void add_run_commands() {
    CLI::App* init = command("init", "write a runnable agents file into DIR", "aetheris init demo");
    positional(init, "DIR", options_.folder, "the folder (default .)", false);

    CLI::App* run = command("run", "run a job of FILE's agent and wait for its result",
                            "aetheris run agents.yaml name=Ada");
    positional(run, "FILE", options_.file, "the agents file");
    policies(run);
    positional(run, "AGENT", options_.agent, "needed when FILE has several agents", false);
    run->add_option(
        "KEY=VALUE", options_.pairs,
        "add a member to the input: KEY=TEXT a string, KEY:=JSON any JSON value; also with "
        "--input");
    input_ = run->add_option("--input", options_.input, "JSON, or @FILE (@- is stdin)");
    message_ =
        run->add_option("--message", options_.message,
                        "the member \"message\" of the input, which loops and planners read");
    run->add_option("--job-id", options_.job_id, "the job's id; an existing job is resumed")
        ->check(not_empty());
    run->add_option("--idempotency-key", options_.idempotency_key,
                    "repeating the key with the same input returns the same job")
        ->check(not_empty());
    CLI::Validator range = CLI::Range(-1000, 1000);
    range.description("");  // documented in the option's help
    run->add_option("--priority", options_.priority, "-1000 to 1000; higher is claimed first")
        ->check(range);
    run->add_option("--deadline", options_.deadline,
                    "the deadline: a duration (30m) or a time in UTC")
        ->check(not_empty());
    run->add_option("--budget", options_.budget,
                    "NAME=AMOUNT: limit tokens, model_calls, tool_calls, cost or wall; at most the "
                    "agent's own limit; repeatable")
        ->allow_extra_args(false);
    run->add_option("--capability", options_.capabilities,
                    "a name that this process offers: it takes jobs that require it; repeatable")
        ->allow_extra_args(false)
        ->check(CLI::Validator(
            [](const std::string& text) {
              return agents::is_capability(text)
                         ? std::string()
                         : std::string("1 to 64 of the characters A-Z a-z 0-9 . _ -");
            },
            "", "capability"));
    const CLI::Validator name(
        [](const std::string& text) {
          return agents::is_capability(text)
                     ? std::string()
                     : std::string("1 to 64 of the characters A-Z a-z 0-9 . _ -");
        },
        "", "name");
    run->add_option("--queue", options_.queue, "the queue to enqueue the job on")->check(name);
    add_queue_options(run);
    run->add_option("--label", options_.labels, "NAME=VALUE; repeatable")->allow_extra_args(false);
    run->add_flag("--detach", options_.detach, "create the job and exit; another process runs it");
    run->add_flag("--only", options_.only,
                  "run this job alone: other unfinished jobs of this store are not resumed");
    run->add_flag("--dry-run", options_.dry_run, "check and show the plan; write nothing");
    run->add_option(
           "--durability", options_.durability,
           "fused (default): one write for each step; split: one for each phase, for crash tests")
        ->check(CLI::IsMember({"fused", "split"}));
    run->add_option("--grace", options_.grace,
                    "time for calls in flight after Ctrl-C (default 10s)");
    run->add_option("--signing-key", options_.signing_key,
                    "sign the log of each idle job with this Ed25519 key (PEM, mode 0600); "
                    "`verify --key` checks it")
        ->envname("AETHERIS_SIGNING_KEY");
    notify(run, "with JSON on stdin; best effort");
    run->add_flag("-v,--verbose", options_.verbose, "print each step on stderr");

    CLI::App* serve = command("serve", "run agents as a service: an HTTP API and workers",
                              "aetheris serve agents.yaml --listen 127.0.0.1:7070");
    policies(serve);
    serve->add_flag("--watch", options_.watch,
                    "reload the agents files when they are edited; running jobs keep their plan");
    serve->add_option("FILE", options_.files, "the agents files; without one no job runs here");
    serve->add_option("--listen", options_.listen, "ADDRESS:PORT (default 127.0.0.1:7070)");
    serve->add_option("--workers", options_.workers, "concurrent jobs (default 256; 0 = none)");
    serve->add_option("--tls-cert", options_.tls_cert,
                      "serve https: the certificate chain (PEM); reloaded on SIGHUP");
    serve->add_option("--tls-key", options_.tls_key,
                      "the certificate's private key (PEM, not world-readable)");
    serve->add_option("--rate", options_.rate,
                      "requests per second per key (default 200; 0 = no limit)");
    serve->add_flag("--insecure-http", options_.insecure_http,
                    "allow plain HTTP on a public address (a proxy terminates TLS)");
    wait_store(serve);
    service(serve);

    CLI::App* worker = command("worker", "run jobs of a shared store, without an HTTP API",
                               "aetheris worker agents.yaml --store postgres://me@db/aetheris");
    policies(worker);
    worker->add_option("FILE", options_.files, "the agents files")->required();
    worker->add_option("--listen", options_.worker_listen,
                       "ADDRESS:PORT of this machine for /api/health, /api/ready and /metrics "
                       "(default: nowhere)");
    worker->add_option("--workers", options_.workers, "concurrent jobs (default 256)");
    wait_store(worker);
    service(worker);

    CLI::App* mcp =
        command("mcp", "serve agents as MCP tools on stdio", "aetheris mcp agents.yaml");
    policies(mcp);
    mcp->add_option("FILE", options_.files,
                    "the agents files (default: the agents of the store's server)");
    mcp->add_option("--workers", options_.workers, "concurrent jobs (default 256; 0 = none)");
    service(mcp);

    CLI::App* check = command("check", "check agents files", "aetheris check agents.yaml --graph");
    policies(check);
    check->add_option("FILE", options_.files, "the agents files")->required();
    check->add_flag("--graph", options_.graph, "print each plan as a graph");
    CLI::Option* accept =
        check->add_flag("--accept", options_.accept,
                        "list the tools of every MCP server, show changes and pin them");
    check->add_flag("--diff", options_.diff, "list the tools of every MCP server and show changes")
        ->excludes(accept);
  }

  // Options of both serve and worker.
  void service(CLI::App* sub) {
    notify(sub, "with JSON on stdin; once per question, over restarts");
    sub->add_option("--capability", options_.capabilities,
                    "a name that this process offers: it takes jobs that require it; repeatable")
        ->allow_extra_args(false)
        ->check(CLI::Validator(
            [](const std::string& text) {
              return agents::is_capability(text)
                         ? std::string()
                         : std::string("1 to 64 of the characters A-Z a-z 0-9 . _ -");
            },
            "", "capability"));
    add_queue_options(sub);
    sub->add_option(
           "--durability", options_.durability,
           "fused (default): one write for each step; split: one for each phase, for crash tests")
        ->check(CLI::IsMember({"fused", "split"}));
    sub->add_option("--grace", options_.grace,
                    "time for calls in flight on shutdown (default 10s)");
    sub->add_option("--lease", options_.lease, "lease duration, 1s to 1h (default 30s)");
    sub->add_option("--signing-key", options_.signing_key,
                    "sign the log of each idle job with this Ed25519 key (PEM, mode 0600); "
                    "`verify --key` checks it")
        ->envname("AETHERIS_SIGNING_KEY");
    sub->add_option("--log", options_.log,
                    "a line on stderr for each event, as text or json (default: jobs and "
                    "warnings)")
        ->check(CLI::IsMember({"text", "json"}));
    CLI::Option* verbose =
        sub->add_flag("-v,--verbose", options_.verbose,
                      "also jobs that are created, start and stop of the service; with --log also "
                      "rejected requests");
    sub->add_flag("--quiet", options_.quiet, "no line for each job: warnings and errors only")
        ->excludes(verbose);
  }

  // Options for the order of claims.
  void add_queue_options(CLI::App* sub) {
    sub->add_option("--queue-limit", options_.queue_limits,
                    "NAME=N: at most N concurrent jobs of this queue; repeatable")
        ->allow_extra_args(false);
    CLI::Option* fair_by =
        sub->add_option(
               "--fair-by", options_.fair_by,
               "take jobs of each value of this label in turn, so that a long queue of one value "
               "does not delay the others; stored until changed")
            ->check(CLI::Validator(
                [](const std::string& text) {
                  return text.empty() ? std::string("it must not be empty") : std::string();
                },
                "", "not empty"));
    sub->add_flag("--no-fair-by", options_.no_fair_by, "stop using --fair-by")->excludes(fair_by);
  }

  void add_query_commands() {
    CLI::App* jobs = command("jobs", "list jobs, newest first", "aetheris jobs --status waiting");
    jobs->add_option("--status", options_.status,
                     "queued running waiting parked completed failed cancelled");
    jobs->add_option("--agent", options_.agent, "only jobs of this agent");
    jobs->add_option("--label", options_.labels, "NAME=VALUE; all must match")
        ->allow_extra_args(false);
    jobs->add_option("--limit", options_.limit, "maximum number of entries (default 100)");
    jobs->add_option("--cursor", options_.cursor, "continue after this job or cursor");
    CLI::Option* stuck = jobs->add_flag("--stuck", options_.stuck,
                                        "only jobs that need an operator, with the command to run");
    jobs->add_option("--older-than", options_.older_than,
                     "with --stuck: minimum time without progress (default 5m); parked jobs always")
        ->needs(stuck);
    CLI::Option* doubt = jobs->add_flag("--in-doubt", options_.in_doubt,
                                        "only jobs with calls whose outcome is unknown");
    for (CLI::Option* list : {stuck, doubt}) {
      for (const char* filter : {"--status", "--agent", "--label"}) {
        list->excludes(jobs->get_option(filter));
      }
    }
    stuck->excludes(doubt);

    positional(command("job", "show one job", "aetheris job holiday"), "ID", options_.id,
               "the job");

    CLI::App* events = command("events", "print a job's log", "aetheris events holiday -f");
    positional(events, "ID", options_.id, "the job");
    CLI::Option* follow =
        events->add_flag("-f,--follow", options_.follow, "follow until the job ends");
    events
        ->add_flag("--said", options_.partial_output,
                   "with --follow --json: also partial model output")
        ->needs(follow);
    events->add_option("--after", options_.after, "only events after this seq");
    events->add_option(
        "--class", options_.event_class,
        "history, coordination, recorded_effect, narrative; or effect: all effect records");
    events->add_option("--type", options_.event_type, "only events of this type");

    CLI::App* trace = command("trace", "show the steps of a job", "aetheris trace holiday");
    positional(trace, "ID", options_.id, "the job");
    trace->add_flag("-v,--verbose", options_.verbose, "with call ids and invocation ids");

    CLI::App* transcript = command("transcript", "show the prompts, answers and calls of a job",
                                   "aetheris transcript holiday");
    positional(transcript, "ID", options_.id, "the job");
    transcript->add_flag("-f,--follow", options_.follow, "follow until the job ends");
    transcript->add_flag("-v,--verbose", options_.verbose, "on a terminal: show long values whole");

    CLI::App* replay = command("replay", "show a job's state at an event; read-only",
                               "aetheris replay holiday --at 5");
    positional(replay, "ID", options_.id, "the job");
    replay->add_option("--at", options_.at, "at this event (default: the last)");

    CLI::App* verify =
        command("verify", "verify a job's log", "aetheris verify holiday --key ada.pub");
    positional(verify, "ID", options_.id, "the job");
    verify
        ->add_option("--key", options_.keys,
                     "a trusted signing key: a file or 64 hex digits (default: "
                     "AETHERIS_SIGNING_KEY); repeatable")
        ->allow_extra_args(false);
  }

  void add_control_commands() {
    CLI::App* signal = command("signal", "send a signal to a waiting job",
                               "aetheris signal holiday ok-holiday '{\"by\": \"Ada\"}'");
    positional(signal, "ID", options_.id, "the job");
    positional(signal, "KEY", options_.key, "the wait's correlation key");
    data_.push_back(signal->add_option("JSON", options_.data, "the payload: JSON, or @FILE"));
    signal->add_option("--type", options_.wait_type, "the expected type of the wait");
    signal->add_option("--message-id", options_.message_id, "a deduplication id");
    signal->add_flag("--buffer", options_.buffer, "keep the signal for a wait that opens later");

    CLI::App* message = command("message", "send a job a message on a channel",
                                "aetheris message holiday news '{\"rain\": true}'");
    positional(message, "ID", options_.id, "the job");
    positional(message, "CHANNEL", options_.channel, "the channel");
    data_.push_back(message->add_option("JSON", options_.data, "the payload: JSON, or @FILE"));
    message->add_option("--message-id", options_.message_id, "a deduplication id");

    CLI::App* approvals =
        command("approvals", "list pending approvals and questions", "aetheris approvals");
    approvals->add_option("--limit", options_.limit, "maximum number of entries (default 100)");
    approvals->add_option("--cursor", options_.cursor, "continue after this cursor");
    CLI::App* approve = command("approve", "approve a pending call or question",
                                "aetheris approve holiday.5d0c2f8a91b3e4f7");
    approve->add_option("--arguments", options_.arguments,
                        "replace the call's arguments: JSON, or @FILE");
    for (CLI::App* answer : {approve, command("reject", "reject a pending call or question",
                                              "aetheris reject holiday.5d0c2f8a91b3e4f7")}) {
      positional(answer, "ID", options_.id, "the id, from `aetheris approvals`");
      answer->add_option("--note", options_.note, "the reason, for the log");
    }

    CLI::App* pause = command("pause", "pause a job once calls in flight have finished",
                              "aetheris pause holiday --reason \"prices are wrong\"");
    positional(pause, "ID", options_.id, "the job");
    pause->add_option("--reason", options_.reason, "the reason, for the log");

    positional(command("resume", "resume a job that is paused, or parked until `resume`",
                       "aetheris resume holiday"),
               "ID", options_.id, "the job");

    CLI::App* budget =
        command("budget", "raise a job's budget", "aetheris budget holiday --tokens 200000");
    positional(budget, "ID", options_.id, "the job");
    budget->add_option("--tokens", options_.tokens, "the new total of tokens");
    budget->add_option("--cost", options_.cost, "the new total cost");
    budget->add_option("--model-calls", options_.model_calls, "the new total of model calls");
    budget->add_option("--tool-calls", options_.tool_calls, "the new total of tool calls");
    budget->add_option("--wall", options_.wall, "the new total duration, such as 2h");
    budget->add_option("--note", options_.note, "the reason, for the log");

    CLI::App* cancel =
        command("cancel", "cancel a job", "aetheris cancel holiday --reason \"the trip is off\"");
    positional(cancel, "ID", options_.id, "the job");
    cancel->add_option("--reason", options_.reason, "the reason, for the log");
    cancel->add_flag("--no-compensate", options_.no_compensate,
                     "do not compensate completed effects");

    CLI::App* resolve = command(
        "resolve", "resolve a call whose outcome is unknown, or a resource that has changed",
        "aetheris resolve payment 5d0c2f8a91b3 happened '{\"receipt\": 17}'");
    positional(resolve, "ID", options_.id, "the job");
    positional(
        resolve, "CALL", options_.key,
        "the call's id or a prefix, from `aetheris job`; for a confirmation the step id or node");
    positional(resolve, "RESOLUTION", options_.resolution,
               "happened, not_happened or fail (the node fails); for a confirmation: accept or "
               "fail (the job fails)");
    data_.push_back(resolve->add_option("JSON", options_.data,
                                        "with happened: the call's result: JSON, or @FILE"));
    resolve->add_option("--note", options_.note, "the reason, for the log");
    resolve->add_option("--try", options_.of_try, "only for this try, from `aetheris job`");
  }

  void add_fork_commands() {
    CLI::App* fork = command("fork", "start a new job from an event of another job",
                             "aetheris fork holiday --at 12");
    positional(fork, "ID", options_.id, "the job to fork; it is not changed");
    fork->add_option("--at", options_.at, "the event to fork at, from `aetheris events`")
        ->required();
    fork_input_ = fork->add_option("--input", options_.input,
                                   "input for the steps that are not done: JSON, or @FILE");
    CLI::App* plan =
        command("plan", "replace the plan of a running job", "aetheris plan holiday agents.yaml");
    positional(plan, "ID", options_.id, "the job");
    positional(plan, "FILE", options_.file, "the agents file with the new plan");
    policies(plan);
    plan->add_option("--drop", options_.drop,
                     "a node whose committed effect the new plan drops; repeatable")
        ->allow_extra_args(false);
    plan->add_option("--reason", options_.reason, "the reason, for the log");
    CLI::App* retry = command(
        "retry", "create a job that continues a failed one; with FILE, under its plan, and run it",
        "aetheris retry holiday agents.yaml");
    positional(retry, "ID", options_.id, "the job that failed");
    positional(retry, "FILE", options_.file,
               "the agents file: the new job runs its plan and keeps results that still apply",
               false);
    policies(retry);
    retry
        ->add_option("--drop", options_.drop,
                     "a node whose committed effect the changed plan drops; repeatable")
        ->allow_extra_args(false);
    retry->add_flag("--detach", options_.detach,
                    "with FILE: create the job and exit; another process runs it");
    for (CLI::App* sub : {fork, retry}) {
      const bool forks = sub == fork;
      sub->add_option("--job-id", options_.job_id,
                      "the id of the new job; repeating the command returns the same job")
          ->check(not_empty());
      sub->add_option("--idempotency-key", options_.idempotency_key,
                      std::string("the same key with the same ") +
                          (forks ? "job, event and input" : "failed job") +
                          " returns the same new job")
          ->check(not_empty());
      sub->add_flag(
          "--repeat-effects", options_.repeat_effects,
          forks ? "allow all effects after the event to be repeated"
                : "allow every call that is not kept and may have taken effect to be made again");
      sub->add_option("--repeat", options_.repeat,
                      "allow this effect to be repeated, with a new external key: node, step id or "
                      "call id; repeatable")
          ->allow_extra_args(false);
    }
  }

  void add_maintenance_commands() {
    CLI::App* migrate =
        command("migrate", "migrate or create the schema of a store", "aetheris migrate --check");
    migrate->add_flag("--check", options_.check_only,
                      "only check; exit code 5 if a migration is needed");
    positional(command("backup", "back up a SQLite store, also while it is in use",
                       "aetheris backup /backups/monday.db"),
               "FILE", options_.file, "the backup file; must not exist");
    CLI::App* restore = command("restore", "restore a backup to a new SQLite store",
                                "aetheris restore /backups/monday.db");
    positional(restore, "FILE", options_.file, "the backup file");
    restore->add_flag("--nothing-lost", options_.nothing_lost,
                      "nothing ran since the backup; jobs continue without review");
    restore->add_flag("--skip-verify", options_.skip_verify, "skip the verification of job logs");
  }

  void add_help_commands() {
    CLI::App* inspect =
        command("inspect", "show the rows of a store; read-only", "aetheris inspect holiday");
    positional(inspect, "ID", options_.id, "one job, with its commits and side records", false);
    CLI::App* rebuild = command("rebuild", "rebuild derived tables from the event logs",
                                "aetheris rebuild --check");
    rebuild->add_option("--job", options_.job_id, "only this job");
    rebuild->add_flag("--check", options_.check_only, "only compare; exit code 6 if a row differs");
    CLI::App* completion = command("completion", "print a shell completion script",
                                   "source <(aetheris completion bash)");
    completion->add_option("SHELL", options_.shell, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    CLI::App* redact =
        command("redact", "erase values of a job that has ended; its log stays verifiable",
                "aetheris redact holiday 1:input 9 --reason \"asked to be forgotten\"");
    positional(redact, "ID", options_.id, "the job");
    redact->add_option("SEQ[:FIELD]", options_.values,
                       "the event and value, from `salts` in `aetheris events`; without FIELD all "
                       "values of the event");
    redact->add_flag("--all", options_.all, "every erasable value; the output lists what is kept");
    redact->add_flag("--tree", options_.tree, "with --all: also every value of its forks");
    redact->add_flag("--keep-forks", options_.keep_forks, "keep the copies in forks");
    redact->add_flag("--keep-blind", options_.keep_blind,
                     "keep the job's hash secret: guesses of erased values can be confirmed");
    redact->add_option("--reason", options_.reason, "the reason, for the audit log")->required();

    CLI::App* prune = command(
        "prune", "delete ended jobs and all their data, and free their ids and idempotency keys",
        "aetheris prune --older-than 90d --archive /archive/aetheris");
    prune
        ->add_option("--older-than", options_.older_than,
                     "minimum time since the end, such as 90d (store clock)")
        ->required();
    prune->add_option("--status", options_.status, "completed,failed,cancelled (default: all)");
    prune->add_option("--agent", options_.agent, "only jobs of this agent");
    prune->add_option("--label", options_.labels, "NAME=VALUE; all must match")
        ->allow_extra_args(false);
    prune->add_option("--archive", options_.archive,
                      "write each job's log to DIR/ID.json before deleting it");
    prune->add_flag("--dry-run", options_.dry_run, "only count");

    CLI::App* audit = command("audit", "show the audit log: changes to records, and by whom",
                              "aetheris audit --verify");
    audit->add_flag("--verify", options_.proves, "verify the audit log");
    audit->add_option("--after", options_.after, "only entries after this seq");
    audit->add_option("--limit", options_.limit, "maximum number of entries (default 1000)");

    CLI::App* keys = command("keys", "create, list and revoke API keys",
                             "aetheris keys create --role viewer --name dashboard --expires 30d");
    keys->add_option("ACTION", options_.action, "create, list or revoke")
        ->required()
        ->check(CLI::IsMember({"create", "list", "revoke"}));
    positional(keys, "ID", options_.id, "revoke: the key id, from `aetheris keys list`", false);
    keys->add_option("--role", options_.role, "create: the role (docs/security.md)")
        ->check(CLI::IsMember({"viewer", "operator", "approver", "worker", "admin"}));
    keys->add_option("--name", options_.name, "create: a name for the key");
    keys->add_option("--expires", options_.expires, "create: the lifetime, such as 30d");

    CLI::App* doctor = command("doctor", "check the environment and the store", "aetheris doctor");
    CLI::Option* accept =
        doctor->add_flag("--accept-rollback", options_.accept_rollback,
                         "accept a store that was rolled back: park its open jobs");
    CLI::Option* restored =
        doctor->add_flag("--restored", options_.restored, "the store was restored from a backup")
            ->needs(accept);
    doctor
        ->add_flag("--nothing-lost", options_.nothing_lost,
                   "the store was moved and nothing ran since; its jobs continue")
        ->needs(accept)
        ->excludes(restored);
    doctor->add_flag("--sandbox", options_.sandbox, "show the sandbox features of this machine")
        ->excludes(accept);
    command("version", "print the version", "aetheris version --json");
  }

  Options& options_;
  CLI::App app_{
      "A deterministic runtime for AI agents: a recorded success is never called again, and an "
      "unknown outcome is never guessed.",
      "aetheris"};

 public:
  CLI::Option* input_ = nullptr;
  CLI::Option* message_ = nullptr;
  CLI::Option* fork_input_ = nullptr;
  std::vector<CLI::Option*> data_;
};

// The parser shows the choices of a value as "TEXT:{fused,split}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t from = type.find('{');
  const std::size_t to = type.find('}');
  std::vector<std::string> choices;
  if (from == type.npos || to == type.npos) return choices;
  std::string word;
  for (std::size_t i = from + 1; i <= to; ++i) {
    if (type[i] != ',' && i != to) {
      word += type[i];
      continue;
    }
    choices.push_back(std::exchange(word, {}));
  }
  return choices;
}

CommandShape shape_of(CLI::App& app, std::string name) {
  CommandShape shape{.name = std::move(name), .what = app.get_description()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      const std::string position = option->get_name(true);
      shape.takes_files = shape.takes_files || position == "FILE" || position == "DIR";
      if (shape.choices.empty()) shape.choices = choices_of(*option);
      continue;
    }
    OptionShape one{.what = option->get_description(),
                    .takes_value = option->get_items_expected_max() > 0,
                    .choices = choices_of(*option)};
    for (const std::string& s : option->get_snames()) one.names.push_back("-" + s);
    for (const std::string& l : option->get_lnames()) one.names.push_back("--" + l);
    shape.options.push_back(std::move(one));
  }
  return shape;
}

}  // namespace

std::vector<CommandShape> command_shapes() {
  Options options;
  Grammar grammar(options);
  std::vector<CommandShape> shapes{shape_of(grammar.app(), "")};
  for (CLI::App* sub : grammar.app().get_subcommands({})) {
    CommandShape shape = shape_of(*sub, sub->get_name());
    // Options of every command.
    for (const OptionShape& common : shapes.front().options) {
      if (common.names.back() == "--store" || common.names.back() == "--json") {
        shape.options.push_back(common);
      }
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

namespace {

// After an unexpected NAME=VALUE, as `run` takes it: what this command takes instead.
std::string pair_hint(std::string_view command, const std::vector<std::string>& unexpected) {
  constexpr std::size_t kWordShown = 40;
  constexpr std::string_view kLimits[] = {"tokens", "cost", "model-calls", "tool-calls", "wall"};
  for (const std::string& word : unexpected) {
    const std::size_t at = word.find('=');
    if (word.starts_with('-') || at == word.npos || word.size() > kWordShown) continue;
    if (command == "retry") {
      return "a retry keeps the input; a new job repeats all calls: aetheris run FILE " +
             quoted(word);
    }
    if (command == "fork") return "give the input as JSON: --input JSON";
    std::string name = word.substr(0, at);
    std::ranges::replace(name, '_', '-');
    if (command != "budget" || std::ranges::find(kLimits, name) == std::end(kLimits)) continue;
    return "write --" + name + " " + quoted(word.substr(at + 1));
  }
  return {};
}

// Rewrites `help COMMAND` to `COMMAND --help`, and `help` to `--help`.
std::vector<char*> without_help(int argc, char** argv) {
  static char flag[] = "--help";
  std::vector<char*> words(argv, argv + argc);
  if (argc < 2 || std::string_view(argv[1]) != "help") return words;
  words.erase(words.begin() + 1);
  words.push_back(flag);
  return words;
}

}  // namespace

Parsed parse(int raw_argc, char** raw_argv) {
  std::vector<char*> all = without_help(raw_argc, raw_argv);
  const int argc = static_cast<int>(all.size());
  char** const argv = all.data();
  Parsed parsed;
  bool store_given = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--") break;
    const std::string_view word = argv[i];
    if (word == "--json") parsed.json = true;
    store_given = store_given || word == "--store" || word.starts_with("--store=");
  }
  if (auto unsupported = unsupported_yet(argc, argv)) {
    parsed.error = std::move(unsupported);
    return parsed;
  }
  Options options;
  options.store_given = store_given;
  try {
    Grammar grammar(options);
    if (argc <= 1) {
      std::fputs(grammar.app().help().c_str(), stderr);
      parsed.code = 2;
      return parsed;
    }
    const std::string command(command_of(argc, argv));
    if (!command.empty() && !grammar.has_command(command)) {
      agents::ClosestName nearest(command);
      for (const CLI::App* one : grammar.app().get_subcommands([](CLI::App*) { return true; })) {
        nearest.consider(one->get_name());
      }
      const std::string suggestion = nearest.best();
      parsed.error =
          Error{Code::usage, "unknown command \"" + command.substr(0, 64) + "\"" +
                                 (suggestion.empty() ? "" : " (did you mean " + suggestion + "?)") +
                                 "; `aetheris --help` lists them"};
      parsed.usage = grammar.usage(command);
      return parsed;
    }
    try {
      grammar.app().parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) {
        parsed.code = grammar.app().exit(error);
        return parsed;
      }
      std::string what = error.what();
      if (const std::size_t end = what.find_last_not_of(" \n"); end != what.npos) {
        what.resize(end + 1);
      }
      const std::string hint = pair_hint(command, grammar.app().remaining(true));
      if (!hint.empty()) what += "; " + hint;
      parsed.error = Error{Code::usage, what + "; see `aetheris " +
                                            (command.empty() ? "" : command + " ") + "--help`"};
      parsed.usage = grammar.usage(command);
      return parsed;
    }
    if (options.command == "run" && options.agent.find('=') != std::string::npos) {
      options.pairs.insert(options.pairs.begin(), std::exchange(options.agent, {}));  // no AGENT
    }
    options.has_message = grammar.message_->count() > 0;
    options.has_input = grammar.input_->count() > 0 || grammar.fork_input_->count() > 0;
    for (const CLI::Option* data : grammar.data_) options.has_data |= data->count() > 0;
  } catch (const std::exception& error) {
    parsed.error = Error{Code::usage, error.what()};
    return parsed;
  }
  parsed.options = std::move(options);
  return parsed;
}

}  // namespace ae::cli
