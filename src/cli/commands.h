// Commands: one function each, from Options to an exit code (API.md §3).
//
// Threads: one.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <vector>

#include "api/api.h"
#include "app/door.h"
#include "app/site.h"
#include "app/store_url.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/value.h"
#include "store/store.h"

namespace ae::cli {

int run_command(const Options& options, Terminal& terminal);
int serve_command(const Options& options, Terminal& terminal);
int worker_command(const Options& options, Terminal& terminal);
int mcp_command(const Options& options, Terminal& terminal);
int init_command(const Options& options, Terminal& terminal);
int check_command(const Options& options, Terminal& terminal);
int doctor_command(const Options& options, Terminal& terminal);
int inspect_command(const Options& options, Terminal& terminal);
int rebuild_command(const Options& options, Terminal& terminal);
int migrate_command(const Options& options, Terminal& terminal);
int backup_command(const Options& options, Terminal& terminal);
int restore_command(const Options& options, Terminal& terminal);
int completion_command(const Options& options, Terminal& terminal);
int version_command(const Options& options, Terminal& terminal);

int jobs_command(const Options& options, Terminal& terminal);
int job_command(const Options& options, Terminal& terminal);
int events_command(const Options& options, Terminal& terminal);
int trace_command(const Options& options, Terminal& terminal);
int transcript_command(const Options& options, Terminal& terminal);
int replay_command(const Options& options, Terminal& terminal);
int verify_command(const Options& options, Terminal& terminal);

int signal_command(const Options& options, Terminal& terminal);
int cancel_command(const Options& options, Terminal& terminal);
int resolve_command(const Options& options, Terminal& terminal);
int message_command(const Options& options, Terminal& terminal);
int pause_command(const Options& options, Terminal& terminal);
int budget_command(const Options& options, Terminal& terminal);
int resume_command(const Options& options, Terminal& terminal);
int approve_command(const Options& options, Terminal& terminal);  // and reject
int fork_command(const Options& options, Terminal& terminal);
int retry_command(const Options& options, Terminal& terminal);
int plan_command(const Options& options, Terminal& terminal);
int redact_command(const Options& options, Terminal& terminal);
int prune_command(const Options& options, Terminal& terminal);
int audit_command(const Options& options, Terminal& terminal);
int keys_command(const Options& options, Terminal& terminal);
int approvals_command(const Options& options, Terminal& terminal);

// ---- what commands share

// --store, AETHERIS_STORE, or the default.
Result<app::StoreUrl> store_of(const Options& options);
// Reports a store that this process has created.
void say_created(const app::Site& site, Terminal& terminal);
// Does AETHERIS_URL name a server?
bool uses_server();
// " --store URL" when it is not the default, for commands that we tell people to type.
std::string store_flag(const app::StoreUrl& store);
// What is asked, of an item of GET /api/approvals: its id, then the call with all that it would send; several lines.
std::string approval_text(const Value& asked);
// Can this command put a question to its user? stdin and stderr are terminals, and the output is not JSON.
bool can_prompt(const Terminal& terminal);
enum class PromptAnswer { yes, no, interrupted };
// Shows one item of GET /api/approvals and reads a line: `y` or `yes` is yes, Ctrl-C is interrupted.
PromptAnswer prompt_approval(const Value& asked, Terminal& terminal);
// A JSON value from the command line: text, @FILE or @- . Fails with input_invalid, usage.
Result<Value> json_argument(const std::string& text, const std::string& name);
// The input of `run`: --input, with the members of KEY=VALUE and --message. nullopt: none is given. Fails with
// input_invalid, usage (a member that is given twice, a KEY=VALUE without KEY or =, --input is not an object).
Result<std::optional<Value>> input_of(const Options& options);
// A number as one, anything else as it stands: who takes it says what is wrong with it.
Value number_or_text(const std::string& text);
// The agents file at `path`, without faults; or, once they are said, the exit code.
std::expected<app::LoadedAgents, int> load_sound(const std::string& path, const Options& options,
                                                 Terminal& terminal);
// Warns of rules of --policies that nothing of these files is under.
void warn_of_idle_policies(const std::vector<agents::Policy>& policies,
                           const std::vector<const agents::AgentsFile*>& files,
                           const Options& options, Terminal& terminal);
// This process among those that work on a store: HOST:PID.
std::string worker_name();
// --queue-limit NAME=N, each. Fails with usage.
Result<std::vector<store::QueueLimit>> queue_limits(const Options& options);
// What the API says of a field or parameter, said of the option that filled it.
Error of_option(Error error);
// How a process serves FILE beside its own files, after a message about that process: " (`aetheris serve FILE… trip.yaml`)".
std::string serve_too_text(const std::string& file);
// One word of a shell command line.
std::string quoted(const std::string& word);
// Who we are, for the record: "cli:NAME".
std::string who();
// The body that the store's API answers; its error when the status is 400 or more. The request is made by who().
Result<Value> answer_of(const Options& options, app::Purpose purpose, api::ApiRequest request);
// The commands that answer what a blocked job waits for: for each thing it waits for, one or several to choose from.
// Empty when nobody can answer.
std::vector<std::vector<std::string>> answers(const Value& job, const app::StoreUrl& store);
// A call in doubt in words: what is not known, and why.
std::string doubt_text(const Value& doubt);
// Of a call in doubt, or one that is to be approved: its arguments and, where it is known, its external key; a line each.
// `columns`: where long ones are cut; 0 = nowhere.
std::vector<std::string> call_lines(const Value& call, std::size_t columns);
// Which limits leave no room for the next call, what is used, and what it asks for; a line each. Of {lacking, limits}.
std::string lacking_text(const Value& budget);
// "node pay waits for a signal with the key go, until 2026-01-02 03:04:05Z", of a job's `waits`.
std::string wait_sentence(const Value& wait);
// " charge ch_1, which is not as it was": what a person is asked about, of a confirmation's resources.
std::string confirmed_text(const Value& resources);
// A job's body whose commands name this store.
Value with_store(const Value& job, const app::StoreUrl& store);
// The calls whose outcome stayed unknown when the job ended, or that it went on without: a sentence each, with what is
// known of the call, and what was noted since or the command that notes it.
// `columns`: as in call_lines.
std::vector<std::string> doubts_of_end(const Value& job, const app::StoreUrl& store,
                                       std::size_t columns);
// "noted: happened, by ann at …"; "" when nothing is noted of the call.
std::string noted_text(const Value& doubt);
// The command that retries job ID, under the plan of FILE unless that is empty. Its --job-id is derived from ID, so that
// the same command run twice makes one job: "a" → "a-retry-1" → "a-retry-2".
std::string retry_command_text(std::string_view id, std::string_view file,
                               const std::string& store_flag, std::string_view next = {});
// Prints it, for a plan that a failed job does not have.
void say_retry(std::string_view id, std::string_view file, const app::StoreUrl& store,
               Terminal& terminal);
// What follows "failed" of a job's error: " at node trip (tool get_trip): http.url: .args.id is null [request_invalid]".
std::string failure_text(const Value& error);
// "pay, ship" of a list of node ids; of many the first ones, then "…".
std::string names_text(const Value& nodes);
// "Took effect: pay", of a job's error; "" when nothing did.
std::string committed_text(const Value& error);
// The jobs that have retried a job under the ids that the commands print (ID-retry-1, …).
struct Retried {
  std::string last, status;  // the newest of the chain; "": none
  std::string next;          // the id of another retry; "": ID-retry-1

  // Not while one runs, nor after one that ended well: another would make its calls again.
  bool may_retry() const { return last.empty() || status == "failed"; }
  // The job to retry next.
  std::string_view of(std::string_view id) const {
    return last.empty() ? id : std::string_view(last);
  }
};
Retried retried(const app::StoreUrl& store, std::string_view id);
// "Retried as job trip-7-retry-1 (completed)."; "" when it was not.
std::string retried_text(const Retried& retried);
// The agents file of a failed job, as far as the command knows it, and its retries.
struct FileOfJob {
  std::string path = {};  // "": unknown
  bool has_one_agent = false;
  std::string store_flag = {};
  Retried retried = {};
};
// What can follow a failure: the retry, with FILE unless only something else than the plan is to be fixed; the option that
// runs a node again whose kept result the expression reads; a new job if the failed expression reads the input. First the
// job that has retried it, without a command.
struct NextCommand {
  std::string name;  // retried, retry, kept, repeat, policy, new job
  std::string lead;  // "After fixing the cause, run: "
  std::string command;
  bool lead_matters = false;  // also where `name` stands before the command
};
std::vector<NextCommand> after_failure(const Value& job, const FileOfJob& file);
// How a blocked job continues once it is answered: the command that runs it, or the process that does. Empty for a store
// that ends with this process.
std::string then_text(const Value& job, const app::StoreUrl& store);
// How a job continues after a request about it was recorded. `holder`: the process that answers for the store, if one does;
// `runs_here`: it runs the job's agent; `flag`: of the store. Empty when it has ended, unless it is cancelled.
std::string continues_text(const Value& job, const std::string& holder, bool runs_here,
                           const std::string& flag);
// Says how the job continues after a request about it was recorded. `id`: the job's.
void say_next(const Options& options, const std::string& id, Terminal& terminal);
// A blocked job in words: what it waits for and the commands that answer it. On stdout only where that is the answer.
enum class Stream { out, err };
void say_blocked(const Value& job, const app::StoreUrl& store, Terminal& terminal,
                 Stream stream = Stream::err);
// Where long arguments of calls are cut; 0 = nowhere: a pipe gets all of them.
std::size_t argument_columns(const Terminal& terminal, Stream stream);
// A value for a person: texts as they are, everything else as indented JSON. Ends with a newline.
std::string shown_value(const Value& value);

}  // namespace ae::cli
