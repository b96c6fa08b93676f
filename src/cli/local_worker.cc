#include "cli/local_worker.h"

#include <utility>

namespace ae::cli {
namespace {

constexpr Duration kLocalWorkerStop = std::chrono::seconds(2);

}  // namespace

LocalWorker::~LocalWorker() {
  if (children_) children_->stop(kLocalWorkerStop);
  children_.reset();
}

Status LocalWorker::start(app::CodeCommand command) {
  app::InstanceOptions options;
  options.store = {.kind = app::StoreUrl::Kind::memory, .path = {}};
  options.mode = app::InstanceOptions::Mode::run;
  options.on_worker = [this](const routines::Definitions& offered) {
    if (children_) children_->on_worker(offered, {});
    instance_->loop().post([this, offered] {
      offered_ = offered;
      instance_->loop().stop();
    });
    return std::vector<agents::Diagnostic>();
  };
  AE_ASSIGN(instance_, app::Instance::open(std::move(options)));
  AE_ASSIGN(std::string socket, instance_->listen_for_workers());
  children_.emplace(*instance_,
                    CodeChildren::Options{.commands = {std::move(command)},
                                          .environment = {{"AETHERIS_SOCKET", std::move(socket)},
                                                          {"AETHERIS_URL", ""}},
                                          .restarts = false},
                    CodeChildren::Callbacks{.print =
                                                [this](const std::string& line) {
                                                  terminal_.note(line);
                                                  if (callbacks_.on_line) callbacks_.on_line(line);
                                                },
                                            .on_failed =
                                                [this](Error why) {
                                                  if (has_started_ && callbacks_.on_end) {
                                                    return callbacks_.on_end(std::move(why));
                                                  }
                                                  if (!failed_) failed_ = std::move(why);
                                                  instance_->loop().stop();
                                                }});
  children_->begin();
  while (!offered_ && !failed_) instance_->loop().run();
  if (failed_) return std::unexpected(*failed_);
  has_started_ = true;
  return {};
}

}  // namespace ae::cli
