// Site: everything one process needs to work on one store, put together.
//
// The only place that names drivers: which store, which clocks, which tools. A site is opened to read (no lock), to
// write (it owns the store), or to run jobs (it also has the tools of an agents file). The owner of a SQLite store
// listens on a socket beside the file, so that other commands find it and speak the same routes.
// Threads: all of it on the thread that runs the loop.
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
#include "core/error.h"
#include "core/hash.h"
#include "net/asio_loop.h"
#include "runtime/rollback.h"
#include "runtime/runtime.h"
#include "runtime/sayings.h"
#include "store/postgres/examine.h"
#include "store/rebuild.h"

namespace ae::app {

extern const std::string_view kVersion;  // "0.1.0"

struct SiteOptions {
  StoreUrl store;
  enum class Mode { read, write, run } mode = Mode::read;
  // run, and write when jobs are to be created: the file, and the folder that its relative paths start from.
  const agents::AgentsFile* agents = nullptr;
  std::string agents_folder = ".";
  // Reads an agent that is to be registered (ApiOptions::read_agent); empty = the file's agents are all there are.
  std::function<std::vector<agents::Fault>(std::string_view, std::string_view, agents::Agent&)>
      read_agent = {};
  // Of tools and models whose paths start elsewhere, by name: they stand in another file.
  std::map<std::string, std::string, std::less<>> folders = {};
  // As ApiOptions::refused.
  std::function<void(const api::ApiRequest&, int, std::string_view)> refused = {};
  // The Api says how this process is, and knows no job: of a worker.
  bool looks_only = false;
  std::size_t descriptors = 0;  // how many a program of a tool may have open; 0 = as many as we
  runtime::RuntimeOptions runtime;
  // From now on claims take turns between the values of this label; "" = by age alone; nullopt = as the store says.
  std::optional<std::string> fair_by = {};
  bool create =
      false;  // write: the store may be a new one, of a kind that only who runs jobs makes otherwise
  bool accept_rollback = false;  // what the store has lost is accepted (Site::accept_rollback)
  bool restored = false;         // … and it has lost something, whatever is remembered
  bool nothing_lost = false;     // … or nothing: its jobs go on
  std::string accepted_by;       // … by whom
  std::string signing_key;       // a file; "" = AETHERIS_SIGNING_KEY, or heads stay unsigned
  std::string tls_key = {};      // a file that stays closed to tools; "" = none
  runtime::RuntimeObserver* observer = nullptr;  // borrowed; may be null
};

struct LoadedAgents;

class Site {
 public:
  // Fails with store_locked (names the pid), not_found (read: there is no store), needs_version, unavailable,
  // plan_invalid (a tool's definition).
  static Result<std::unique_ptr<Site>> open(SiteOptions options);
  virtual ~Site() = default;

  virtual net::AsioLoop& loop() = 0;
  virtual store::Store& store() = 0;
  virtual runtime::Runtime& runtime() = 0;
  virtual api::Api& api() = 0;
  // Which store this is, without a password.
  virtual std::string store_name() const = 0;
  // Owner of a SQLite store only; nothing otherwise. What goes wrong is said and changes nothing else.
  virtual Status listen() = 0;
  virtual void stop_listening() = 0;
  // Serves the Api by TCP (Listener::listen_tcp). Gives the port.
  virtual Result<std::uint16_t> serve(ServeOptions options) = 0;
  // Registers our agents; from now on those of the store are offered, as `serve` does it. REQUIRES: read_agent.
  virtual Status keep_agents() = 0;
  // The agents file was edited: its tools and agents are those of new jobs from here on; jobs that run keep theirs. What
  // was registered is the answer. REQUIRES: keep_agents; `loaded` has no faults. Fails with plan_invalid, unsupported (a
  // restart is needed), unavailable, unknown_outcome; then jobs are made as before.
  virtual void reload(std::shared_ptr<const LoadedAgents> loaded,
                      async::Done<Result<std::vector<api::Api::AgentChange>>> done) = 0;
  // From now on agents that are registered in the store are run, too. REQUIRES: read_agent, and jobs are run.
  virtual Status follow_agents() = 0;
  // Are there keys, and none of them lets anybody in? REQUIRES: serve.
  virtual bool keys_all_ended() = 0;
  // Does the server on the network accept only requests with a key?
  virtual bool needs_keys() = 0;
  // Takes no new connections, answers those who wait, and calls `done` when all are gone, after `grace` at the latest.
  virtual void stop_serving(Duration grace, std::function<void()> done) = 0;

  // Of a store that was opened with `accept_rollback` and had gone backwards: parks every job that has not ended, and
  // opens the store for work again. nullopt: nothing had been lost.
  virtual Result<std::optional<runtime::ParkedJobs>> accept_rollback(const std::string& by) = 0;
  // Is the store a new file, which `open` created?
  virtual bool created() const = 0;
  // Was nothing left of the store that was opened so, and is it an empty one now?
  virtual bool began_empty() const = 0;
  // What answers say as they come, of jobs that run here.
  virtual runtime::Sayings& sayings() = 0;

  // Runs the loop until there is an answer.
  api::ApiResponse ask(api::ApiRequest request);
};

// Has the store lost something that is remembered beside it, or on this machine of a shared one? Fails with store_rolled_back when it has.
Status look_for_rollback(const StoreUrl& store);
// What the server of a shared store is like; nullopt: it is none. Fails with what nobody can work with, and unavailable.
Result<std::optional<store::PostgresFacts>> examine(const StoreUrl& store);

// The rows of a store beside its logs, to be compared or made anew; nobody else may own it while they are made. Fails with
// store_locked (names the pid), not_found, needs_version, unavailable, unsupported (a store that is gone with its process).
struct RebuildSite {
  StoreUrl store;
  bool compare_only = false;
  std::string job;  // "" = all
};
Result<std::unique_ptr<store::Rebuild>> open_rebuild(const RebuildSite& site);

// The agents file as this program reads it: `env.` from our environment, native functions that we have.
// Fails with usage when the file cannot be read; faults are not an error.
struct LoadedAgents {
  agents::AgentsFile file;
  std::vector<agents::Fault> faults;
  std::string folder;
  std::string path, text;                                        // as it was read
  std::map<std::string, std::string, std::less<>> folders = {};  // as in SiteOptions
  std::vector<LoadedAgents> more =
      {};  // of several files (join.h): those behind the first, as they were read
  std::map<std::string, Value, std::less<>> server_tools = {};  // what is pinned, by MCP server
  std::vector<std::string> said = {};         // for whoever started us: what was pinned
  std::vector<agents::Policy> policies = {};  // of a file of their own
  std::map<std::string, Hash> read = {};      // the content of each file as it was read, by path
};
// Which MCP servers are asked for their tools (server_lock.h): those that are not pinned, to pin them; all, to show what has
// changed; all, to pin it too.
// `never`: one that is not pinned is a fault.
enum class AskServers { if_new, to_look, to_accept, never };

struct AgentsFileWish {
  AskServers servers = AskServers::if_new;
  std::string policies = {};  // a policies file, whose rules come first; "" = none
};
// Fails with usage, unavailable (the lock file cannot be written).
Result<LoadedAgents> load_agents(const std::string& path, const AgentsFileWish& wish = {});
// Another agent, given as JSON, that uses the tools and models of this file (agents::load_agent).
std::vector<agents::Fault> read_agent(const LoadedAgents& loaded, std::string_view name,
                                      std::string_view json, agents::Agent& out);

}  // namespace ae::app
