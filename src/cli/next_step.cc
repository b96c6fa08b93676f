// How a job continues: after it is unblocked, and after a control request was recorded.
#include <fmt/core.h>

#include <string>
#include <utility>

#include "cli/shared.h"
#include "inspect/aliases.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

std::string run_command_text(std::string_view id, const std::string& flag) {
  return fmt::format("aetheris run FILE --job-id {}{}", quoted(std::string(id)), flag);
}

Result<Value> body_of(app::ApiClient& client, api::Path path) {
  api::ApiRequest request;
  request.path = std::move(path);
  AE_ASSIGN(api::ApiResponse response, client.send(request));
  if (response.status != 200) return fail(Code::unavailable, "no body");
  return std::move(response.body);
}

// The process that serves this store, if any: "the server", "process 123".
std::string find_answering_owner(const app::StoreUrl& store) {
  if (uses_server()) return "the server";
  return app::find_owner(store) ? app::owner_name(store) : std::string();
}

}  // namespace

std::string continues_text(const Value& job, const std::string& owner, bool runs_here,
                           const std::string& flag) {
  const std::string id = safe(job.text("id"));
  const std::string run = run_command_text(job.text("id"), flag);
  const std::string_view status = job.text("status");
  if (status == "completed" || status == "failed") return "";
  if (status == "cancelled") return fmt::format("job {} is cancelled", id);
  const bool cancelling = job["ending"].text(field::kind) == "cancelled";
  if (status == "waiting" || status == "parked") {
    return fmt::format("job {} is {}{}. See: aetheris job {}{}", id,
                       cancelling ? "being cancelled and is " : "", status,
                       quoted(std::string(job.text("id"))), flag);
  }
  if (job[engine::plain_name::kNoWorker].is_object()) {
    const std::string state = cancelling ? fmt::format("job {} is being cancelled\n", id) : "";
    return fmt::format("{}To continue, run: {}\nor start a server: aetheris serve FILE{}", state,
                       run, flag);
  }
  if (runs_here && !owner.empty()) return fmt::format("job {} continues in {}", id, owner);
  if (status == "running") return fmt::format("job {} continues in the process that runs it", id);
  return fmt::format(
      "The server or worker that runs agent \"{}\" continues the job. If there is none, run:\n{}",
      safe(job.text(field::agent)), run);
}

std::string continuation_text(const Value& job, const app::StoreUrl& store) {
  if (store.kind == app::StoreUrl::Kind::memory && !uses_server()) return "";
  const std::string owner = find_answering_owner(store);
  if (!owner.empty()) {
    const auto client = app::ApiClient::open(store, app::OpenMode::read);
    const auto agent =
        client ? body_of(**client, {"api", "agents", std::string(job.text(field::agent))})
               : std::unexpected(client.error());
    if (agent && (*agent)["runs_here"] == Value(true))
      return fmt::format("it continues in {}", owner);
  }
  return run_command_text(job.text("id"), store_flag(store));
}

void print_next_step(const CommonOptions& options, const std::string& id, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return;
  const auto client = app::ApiClient::open(*store, app::OpenMode::read);
  if (!client) return;
  const auto job = body_of(**client, {"api", "jobs", id});
  if (!job) return;
  const auto agent = body_of(**client, {"api", "agents", std::string(job->text(field::agent))});
  const bool runs_here = agent && (*agent)["runs_here"] == Value(true);
  const std::string text =
      continues_text(*job, find_answering_owner(*store), runs_here, store_flag(*store));
  if (!text.empty()) terminal.note(text);
}

}  // namespace ae::cli
