// Instance: everything one process needs to work on one store.
//
// The only place that chooses implementations: of the store, the clocks and the tools. An instance
// is opened to read (no lock), to write (it owns the store), or to run jobs (it also has the tools
// of an agents file). The owner of a SQLite store listens on a socket beside the file, so that
// other commands find it and use the same routes.
// Threads: the thread that runs the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agents/agents_file.h"
#include "api/api.h"
#include "app/listener.h"
#include "app/store_url.h"
#include "base/error.h"
#include "base/hash.h"
#include "net/asio_loop.h"
#include "routines/native/native_routines.h"
#include "routines/remote/remote_routines.h"
#include "runtime/driver/output_hub.h"
#include "runtime/scheduler/runtime.h"
#include "runtime/service/rollback.h"
#include "store/postgres/server_info.h"
#include "store/rebuild.h"

namespace ae::app {

extern const std::string_view kVersion;  // "0.1.0"

struct InstanceOptions {
  StoreUrl store;
  enum class Mode { read, write, run } mode = Mode::read;
  // For `run`, and for `write` if jobs are to be created: the agents file, and the base folder of
  // its relative paths.
  const agents::AgentsFile* agents = nullptr;
  std::string agents_folder = ".";
  // Parses an agent to be registered (ApiOptions::read_agent); empty = only the file's agents
  // exist.
  std::function<std::vector<agents::Diagnostic>(std::string_view, std::string_view, agents::Agent&)>
      read_agent = {};
  // Base folders of tools and models that are defined in another file, by name.
  std::map<std::string, std::string, std::less<>> folders = {};
  // As ApiOptions::on_refused.
  std::function<void(const api::ApiRequest&, int, std::string_view)> on_refused = {};
  // For a worker: the Api serves only health, readiness and metrics.
  bool health_only = false;
  std::size_t descriptors = 0;  // limit for programs of tools; 0 = our own
  runtime::RuntimeOptions runtime;
  // Sets the fairness key to the values of this label; "" = claim by age alone; nullopt =
  // unchanged.
  std::optional<std::string> fair_by = {};
  bool create = false;           // write: also create a missing store of a shared database
  bool accept_rollback = false;  // accept a rollback of the store (Instance::accept_rollback)
  bool restored = false;         // … treat it as rolled back even without evidence
  bool nothing_lost = false;     // … or as complete: its jobs continue
  std::string accepted_by;       // … the operator, for the audit log
  std::string signing_key;       // a file; "" = AETHERIS_SIGNING_KEY, or heads stay unsigned
  std::string tls_key = {};      // a file that tools cannot open; "" = none
  runtime::RuntimeObserver* observer = nullptr;  // borrowed; may be null
  // Code agents and functions of this program, for `run`. Their definitions are in `agents`.
  std::vector<routines::NativeAgent> native_agents = {};
  std::vector<routines::NativeFunction> native_functions = {};
  routines::FunctionObserver function_observer = {};  // of their calls; empty: none
  // Makes the store, in place of a store in memory of this instance: one whose data and clock outlive
  // it, for tests. REQUIRES: `store` is in memory.
  std::function<std::unique_ptr<store::Store>(async::Loop&)> make_store = {};
  // Lets worker processes connect (docs/worker-protocol.md), for `run`. Accepts what one offers; the
  // faults of its agents and tools. Empty: no worker connects.
  std::function<std::vector<agents::Diagnostic>(const routines::Definitions&)> on_worker = {};
  // The policy of versions of code, instead of that of each agent: `warn` while code is developed.
  std::optional<engine::VersionPolicy> code_versions = {};
};

struct LoadedAgents;

class Instance {
 public:
  // Fails with store_locked (names the pid), not_found (read: the store does not exist),
  // needs_version, unavailable, plan_invalid (a tool's definition).
  static Result<std::unique_ptr<Instance>> open(InstanceOptions options);
  virtual ~Instance() = default;

  virtual net::AsioLoop& loop() = 0;
  virtual store::Store& store() = 0;
  virtual runtime::Runtime& runtime() = 0;
  virtual api::Api& api() = 0;
  // The store's address, without a password.
  virtual std::string store_name() const = 0;
  // Listens on the socket of the owner of a SQLite store; a no-op for other stores. Failures are
  // reported as warnings.
  virtual Status listen() = 0;
  // Answers waiting requests, lets responses and streams finish, for a second at most, and closes
  // the socket.
  virtual void stop_listening() = 0;
  // Serves the Api over TCP (Listener::listen_tcp). Returns the port.
  virtual Result<std::uint16_t> serve(ServeOptions options) = 0;
  // Registers our agents and offers those of the store, as `serve` does. REQUIRES: read_agent.
  virtual Status register_agents() = 0;
  // After an edit of the agents file: new jobs use its tools and agents; running jobs keep theirs.
  // Returns the registered agents. REQUIRES: register_agents; `loaded` has no diagnostics. Fails
  // with plan_invalid, unsupported (a restart is needed), unavailable, unknown_outcome; then
  // nothing changes for new jobs.
  virtual void reload(std::shared_ptr<const LoadedAgents> loaded,
                      async::Done<Result<std::vector<api::AgentChange>>> done) = 0;
  // Is a later version of this agent's code registered in the store?
  virtual bool is_superseded(const routines::AgentVersion& code) = 0;
  // Also runs the agents that are registered in the store. REQUIRES: read_agent, and Mode::run.
  virtual Status follow_agents() = 0;
  // Are there keys, but none that is live? REQUIRES: serve.
  virtual bool has_no_live_key() = 0;
  // Does the network server require a key for every request?
  virtual bool needs_keys() = 0;
  // Stops accepting connections, answers waiting requests, and calls `done` when all connections
  // are closed, after `grace` at the latest.
  virtual void stop_serving(Duration grace, std::function<void()> done) = 0;
  // The path of a Unix socket for workers that this process starts: the one of `listen`, or else a
  // private one in a new folder below the folder for temporary files. Fails with unavailable.
  virtual Result<std::string> listen_for_workers() = 0;
  // Runs the code of workers and of this program. It lives as long as the instance.
  virtual routines::RoutineProvider& code() = 0;
  // No further routine is started in this worker.
  virtual void drain_worker(std::string_view worker) = 0;
  // The process of this worker has ended: its routines and calls are lost.
  virtual void end_worker(std::string_view worker) = 0;
  // Closes the connections of workers. REQUIRES: the runtime has stopped.
  virtual void close_workers() = 0;

  // For a store that was opened with `accept_rollback` and was rolled back: parks every job that
  // has not ended, and reopens the store for normal work. nullopt: there was no rollback.
  virtual Result<std::optional<runtime::ParkResult>> accept_rollback(const std::string& by) = 0;
  // Did `open` create the store's file?
  virtual bool created() const = 0;
  // Was the whole store lost, and did this opening replace it by an empty one?
  virtual bool was_recreated() const = 0;
  // Partial output of the models of jobs that run here.
  virtual runtime::OutputHub& output_hub() = 0;

  // Runs the loop until the response arrives.
  api::ApiResponse send(api::ApiRequest request);
};

// Checks the store against the recorded store position, beside it or, of a shared store, on this
// machine. Fails with store_rolled_back.
Status check_for_rollback(const StoreUrl& store);
// The properties of a shared store's server; nullopt: not a shared store. Fails if the server is
// not supported, and with unavailable.
Result<std::optional<store::PostgresServerInfo>> examine(const StoreUrl& store);

// Opens the derived tables of a store, to compare or rebuild them; a rebuild needs exclusive
// ownership. Fails with store_locked (names the pid), not_found, needs_version, unavailable,
// unsupported (a store in memory).
struct RebuildRequest {
  StoreUrl store;
  bool compare_only = false;
  std::string job;  // "" = all
};
Result<std::unique_ptr<store::Rebuild>> open_rebuild(const RebuildRequest& request);

// A loaded agents file, with `env.` from our environment and the native functions of this program.
// Loading fails with usage if the file cannot be read; diagnostics are not an error.
struct LoadedAgents {
  agents::AgentsFile file;
  std::vector<agents::Diagnostic> diagnostics;
  std::string folder;
  std::string path, text;                                        // content as read
  std::map<std::string, std::string, std::less<>> folders = {};  // as in InstanceOptions
  std::vector<LoadedAgents> more = {};  // of several files (merge_agents.h): the others, as read
  std::map<std::string, Value, std::less<>> server_tools = {};  // pinned tools, by MCP server
  std::vector<std::string> notices = {};                        // for the user: what was pinned
  std::vector<agents::Policy> policies = {};                    // from a policies file
  std::string code = {};                                        // AgentsFileOptions::code
  std::map<std::string, Hash> read = {};  // hash of each file as read, by path
};
// Which MCP servers are listed for their tools (server_lock.h): `if_unpinned`: those that are not
// pinned, to pin them; `to_compare`: all, to show changes; `to_pin`: all, and pin the result;
// `never`: none, and an unpinned server is an error.
enum class ServerListing { if_unpinned, to_compare, to_pin, never };

struct AgentsFileOptions {
  ServerListing servers = ServerListing::if_unpinned;
  std::string policies = {};  // a policies file whose rules come first; "" = none
  std::string code = {};      // agents and tools of workers (agents::Source::code); "" = none
  bool needs_agents = true;   // agents::Source::needs_agents
};
// `path`: "" = there is no file, only `code`. Fails with usage, unavailable (the lock file cannot be
// written).
Result<LoadedAgents> load_agents(const std::string& path,
                                 const AgentsFileOptions& load_options = {});
// Parses another agent, given as JSON, that uses the tools and models of this file
// (agents::load_agent).
std::vector<agents::Diagnostic> read_agent(const LoadedAgents& loaded, std::string_view name,
                                           std::string_view json, agents::Agent& out);

}  // namespace ae::app
