#include "tools/command/processes.h"

#include <utility>

#include "tools/command/process_listener.h"

namespace ae::tools {

Processes::Processes(async::Loop& loop, std::string supervisor, std::size_t descriptors,
                     std::vector<std::string> denied_paths)
    : denied_paths_(std::move(denied_paths)),
      listener_(std::make_unique<Listener>(loop, std::move(supervisor), descriptors)) {}

Processes::~Processes() = default;

Processes::Id Processes::start(LaunchSpec launch, async::Done<ProcessGroup> ready,
                               ReportCallback on_report, async::Done<ProcessExit> ended) {
  const Id id = next_++;
  listener_->post_task([id, launch = std::move(launch), ready = std::move(ready),
                        on_report = std::move(on_report),
                        ended = std::move(ended)](Listener& l) mutable {
    l.start(id, std::move(launch), std::move(ready), std::move(on_report), std::move(ended));
  });
  return id;
}

void Processes::go(Id id) {
  listener_->post_task([id](Listener& l) { l.go(id); });
}

void Processes::write(Id id, std::string bytes) {
  listener_->post_task(
      [id, bytes = std::move(bytes)](Listener& l) mutable { l.write(id, std::move(bytes)); });
}

void Processes::kill(Id id) {
  listener_->post_task([id](Listener& l) { l.kill(id); });
}

void Processes::stop(Id id) {
  listener_->post_task([id](Listener& l) { l.stop(id); });
}

}  // namespace ae::tools
