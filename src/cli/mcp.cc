// mcp: the agents of a store as tools of the Model Context Protocol, on standard input and output.
//
// Where somebody owns the store, or AETHERIS_URL names a server, this process only carries words; else it is the owner and
// runs the jobs itself, until its input ends.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "api/mcp.h"
#include "api/problem.h"
#include "app/door.h"
#include "app/site.h"
#include "app/stdio.h"
#include "async/boot_clock.h"
#include "cli/commands.h"
#include "cli/service.h"
#include "net/asio_loop.h"

namespace ae::cli {
namespace {

constexpr auto kOwnerWait =
    std::chrono::seconds(3);  // for one that has just begun, or is about to end
constexpr auto kOwnerPoll = std::chrono::milliseconds(50);

api::ApiResponse response_of(Result<api::ApiResponse> answer) {
  if (answer) return *std::move(answer);
  return {.status = api::http_status(answer.error().code),
          .body = api::problem(answer.error()),
          .location = {},
          .text = {}};
}

// By way of a process that answers for the store.
int carry(app::Door& door, const ServiceWish& wish, Terminal& terminal) {
  api::ApiRequest health;
  health.path = {"api", "health"};
  if (const auto there = door.ask(health); !there) return terminal.fail_with(there.error());
  net::AsioLoop& loop = door.loop();
  async::BootClock steady;
  api::Mcp mcp(
      loop, steady,
      [&door](const api::ApiRequest& request, async::Done<api::ApiResponse> done) {
        door.start(request, [done = std::move(done)](Result<api::ApiResponse> answer) mutable {
          done(response_of(std::move(answer)));
        });
      },
      std::string(app::kVersion));
  bool over = false;
  const auto leave = [&] {
    over = true;
    loop.stop();
  };
  app::Stdio stdio(loop, mcp,
                   {.by = who(),
                    .ended = [&](bool) { leave(); },
                    .grace = wish.grace,
                    .ending = [&] { mcp.stop_waiting(); }});
  loop.on_signals([&](int) { leave(); });
  stdio.begin();
  while (!over) loop.run();
  return kDone;
}

// As the owner of the store, or one of many who share it.
int own(std::unique_ptr<app::Site> site, Service& service, const ServiceWish& wish,
        Terminal& terminal) {
  service.attach(*site);
  if (wish.loaded) {
    if (auto kept = site->keep_agents(); !kept) return terminal.fail_with(kept.error());
  }
  if (auto listens = site->listen(); !listens) {
    terminal.warn("other commands cannot reach this process through the store: " +
                  listens.error().message);
  }
  async::BootClock steady;
  api::Mcp mcp(
      site->loop(), steady,
      [&site](api::ApiRequest request, async::Done<api::ApiResponse> done) {
        site->api().handle(std::move(request), std::move(done));
      },
      std::string(app::kVersion));
  app::Stdio stdio(site->loop(), mcp,
                   {.by = who(),
                    .ended = [&](bool) { service.stop(); },
                    .grace = wish.grace,
                    .ending =
                        [&] {
                          mcp.stop_waiting();
                          site->api().stop_waiting();
                        }});
  stdio.begin();
  return service.run();
}

}  // namespace

int mcp_command(const Options& options, Terminal& terminal) {
  const char* const url = std::getenv("AETHERIS_URL");
  const bool elsewhere = url != nullptr && *url != '\0';
  if (elsewhere && !options.files.empty()) {
    return terminal.fail_with(
        {Code::usage,
         "AETHERIS_URL names a server with its own agents: omit FILE, or unset AETHERIS_URL"});
  }
  const auto wish = service_wish(options, terminal);
  if (!wish) return wish.error();
  if (elsewhere) {
    auto door = app::Door::to_server(url);
    if (!door) return terminal.fail_with(door.error());
    return carry(**door, *wish, terminal);
  }
  Options quietly = options;  // a client keeps what its servers print
  if (options.log.empty() && !options.verbose) quietly.quiet = true;
  Service service(terminal, quietly, *wish);
  const auto give_up = std::chrono::steady_clock::now() + kOwnerWait;
  while (true) {
    if (auto owner = app::find_owner(wish->store)) {
      if (wish->loaded) {
        terminal.note("another process owns this store; its agents are served, not those of " +
                      options.files.front());
      }
      return carry(*owner, *wish, terminal);
    }
    app::SiteOptions site = service.site(options, *wish);
    if (wish->loaded) {
      site.create = true;
      site.read_agent = [&file = *wish->loaded](std::string_view name, std::string_view json,
                                                agents::Agent& out) {
        return app::read_agent(file, name, json, out);
      };
    }
    auto opened = app::Site::open(std::move(site));
    if (opened) return own(*std::move(opened), service, *wish, terminal);
    const bool again =
        opened.error().code == Code::store_locked && std::chrono::steady_clock::now() < give_up;
    if (!again) return terminal.fail_with(opened.error());
    std::this_thread::sleep_for(kOwnerPoll);
  }
}

}  // namespace ae::cli
