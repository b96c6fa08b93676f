// Functions that several commands share.
//
// Threads: one.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <vector>

#include "api/api.h"
#include "app/api_client.h"
#include "app/instance.h"
#include "app/store_url.h"
#include "base/error.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "json/value.h"
#include "store/store.h"

namespace ae::cli {

// --store, AETHERIS_STORE, or the default.
Result<app::StoreUrl> store_of(const CommonOptions& options);
// Reports a store that this process has created.
void print_created(const app::Instance& instance, Terminal& terminal);
// Does AETHERIS_URL name a server?
bool uses_server();
// " --store URL" unless it is the default; for printed commands.
std::string store_flag(const app::StoreUrl& store);
// An item of GET /api/approvals as text: its id, then the call with everything it would send;
// several lines.
std::string approval_text(const Value& approval);
// Can this command prompt its user? True if stdin and stderr are terminals and the output is not
// JSON.
bool can_prompt(const Terminal& terminal);
enum class PromptAnswer { yes, no, interrupted };
// Shows an item of GET /api/approvals and reads a line: `y` or `yes` approves, Ctrl-C interrupts.
PromptAnswer prompt_approval(const Value& approval, Terminal& terminal);
// A JSON value from the command line: text, @FILE or @- . Fails with input_invalid, usage.
Result<Value> json_argument(const std::string& text, const std::string& name);
// A JSON number if the text is one, else the text, which the receiver validates.
Value number_or_text(const std::string& text);
// Loads the agents file at `path`; if it has diagnostics, prints them and gives the exit code.
std::expected<app::LoadedAgents, int> load_valid_agents(const std::string& path,
                                                        const app::AgentsFileOptions& load_options,
                                                        Terminal& terminal);
// Warns about rules of the policies file `path` that match nothing in these files.
void warn_of_idle_policies(const std::string& path, const std::vector<agents::Policy>& policies,
                           const std::vector<const agents::AgentsFile*>& files, Terminal& terminal);
// The name of this process as a worker of a store: HOST:PID.
std::string worker_name();
// Parses each --label NAME=VALUE. Fails with usage.
Result<Value> labels_of(const std::vector<std::string>& texts);
// Parses each --queue-limit NAME=N. Fails with usage.
Result<std::vector<store::QueueLimit>> queue_limits(const std::vector<std::string>& texts);
// Replaces API fields and parameters in the message by the options that set them.
Error with_option_names(Error error);
// Appended to a message about a process, to serve FILE too: " (`aetheris serve FILE… trip.yaml`)".
std::string serve_too_text(const std::string& file);
// Quotes a word for a shell.
std::string quoted(const std::string& word);
// The actor of this command, for the audit log and events: "cli:NAME".
std::string cli_actor();
// Sends the request to the store's API as cli_actor(). Returns the body, or its error if the status
// is 400 or more.
Result<Value> answer_of(const CommonOptions& options, app::OpenMode mode, api::ApiRequest request);
// The commands that unblock a job: for each open request, one or more alternatives. Empty if no
// command can.
std::vector<std::vector<std::string>> answer_commands(const Value& job, const app::StoreUrl& store);
// An unknown outcome in words: of which call, and why.
std::string unknown_outcome_text(const Value& doubt);
// For a call with an unknown outcome or one to approve: its arguments and, if known, its external
// key; one line each. `columns`: where long arguments are cut; 0 = never.
std::vector<std::string> call_lines(const Value& call, std::size_t columns);
// The limits that the next call exceeds, with usage and request; one line each. From {shortfall,
// limits}.
std::string shortfall_text(const Value& budget);
// "node pay waits for a signal with the key go, until 2026-01-02 03:04:05Z", from a job's `waits`.
std::string wait_sentence(const Value& wait);
// " charge ch_1, which is not as it was": the resources of a verification.
std::string resources_text(const Value& resources);
// A job's body with the store added to its commands.
Value with_store(const Value& job, const app::StoreUrl& store);
// The calls whose outcome was unknown when the job ended, or when it continued without them: one
// sentence each, with details of the call, and the outcome recorded since or the command that
// records it. `columns`: as in call_lines.
std::vector<std::string> final_unknown_outcomes(const Value& job, const app::StoreUrl& store,
                                                std::size_t columns);
// "noted: happened, by ann at …"; "" if no outcome was recorded for the call.
std::string noted_text(const Value& doubt);
// The command that retries job ID, under the plan of FILE unless that is empty. Its --job-id is
// derived from ID, so that repeating the command creates one job: "a" → "a-retry-1" → "a-retry-2".
std::string retry_command_text(std::string_view id, std::string_view file,
                               const std::string& store_flag, std::string_view next = {});
// Prints it, if the file's plan is not that of the failed job.
void print_retry(std::string_view id, std::string_view file, const app::StoreUrl& store,
                 Terminal& terminal);
// The text after "failed" for a job's error: " at node trip (tool get_trip): http.url: .args.id is
// null [request_invalid]".
std::string failure_text(const Value& error);
// "pay, ship" from a list of node ids; a long list is cut with "…".
std::string names_text(const Value& nodes);
// "Took effect: pay", from the error of a job; for a program's exit code also what a retry repeats.
// "" if neither applies.
std::string committed_text(const Value& job);
// The retries of a job under the ids that commands print (ID-retry-1, …).
struct RetryChain {
  std::string last, status;  // the newest of the chain; "" = none
  std::string next;          // the id of the next retry; "" = ID-retry-1

  // False while a retry runs or after one that did not fail: another one would repeat its calls.
  bool may_retry() const { return last.empty() || status == "failed"; }
  // The job to retry next.
  std::string_view of(std::string_view id) const {
    return last.empty() ? id : std::string_view(last);
  }
};
RetryChain find_retries(const app::StoreUrl& store, std::string_view id);
// "Retried as job trip-7-retry-1 (completed)."; "" if there is no retry.
std::string retried_text(const RetryChain& retry_chain);
// The agents file of a failed job, if known, and its retries.
struct FailedJobFile {
  std::string path = {};  // "" = unknown
  bool has_one_agent = false;
  std::string store_flag = {};
  RetryChain retry_chain = {};
};
// The possible next commands after a failure: first, without a command, the job that has retried
// it; then the retry, with FILE unless the plan needs no fix; recording the result of a call that
// took effect; options that rerun a node whose kept result the failed expression reads, or repeat a
// call; a retry policy; a new job if the failed expression reads the input.
struct NextCommand {
  std::string name;  // retried, retry, record, kept, repeat, policy, new job
  std::string lead;  // "After fixing the cause, run: "
  std::string command;
  bool lead_matters = false;  // also if `name` precedes the command
};
std::vector<NextCommand> next_commands(const Value& job, const FailedJobFile& file);
// How a blocked job continues once it is answered: the command or the process that runs it. Empty
// for a store in memory.
std::string continuation_text(const Value& job, const app::StoreUrl& store);
// How a job continues after a control request was recorded. `owner`: the process that owns the
// store, if any; `runs_here`: it runs the job's agent; `flag`: from store_flag. Empty if the job
// has ended, unless it is being cancelled.
std::string continues_text(const Value& job, const std::string& owner, bool runs_here,
                           const std::string& flag);
// Prints how the job `id` continues after a control request was recorded.
void print_next_step(const CommonOptions& options, const std::string& id, Terminal& terminal);
// Prints a blocked job: what it waits for and the commands that unblock it. To stdout only if that
// is the command's result.
enum class Stream { out, err };
void print_blocked(const Value& job, const app::StoreUrl& store, Terminal& terminal,
                   Stream stream = Stream::err);
// Where long arguments of calls are cut; 0 = never: a pipe gets all of them.
std::size_t argument_columns(const Terminal& terminal, Stream stream);
// A value for display: strings unchanged, everything else as indented JSON. Ends with a newline.
std::string shown_value(const Value& value);

}  // namespace ae::cli
