#include "worker_process.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tools/native/native.h"

namespace ae::bench {
namespace {

constexpr int kMakingAtOnce = 256;

[[noreturn]] void give_up(const Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  std::exit(1);
}

}  // namespace

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void say_on(int pipe, Said::What what) {
  const Said said{what, now_us()};
  if (::write(pipe, &said, sizeof said) != sizeof said) std::exit(1);
}

Said heard_on(int pipe) {
  Said said;
  if (::read(pipe, &said, sizeof said) != sizeof said) std::exit(1);
  return said;
}

std::int64_t await_said(int pipe, Said::What what) {
  for (;;) {
    const Said said = heard_on(pipe);
    if (said.what == what) return said.at_us;
  }
}

WorkerProcess::WorkerProcess(const Options& wish) : says_(wish.says) {
  auto opened = store::PostgresStore::open({.url = wish.url, .loop = loop_});
  if (!opened) give_up(opened.error());
  store_ = *std::move(opened);
  performers_.add("work", {std::make_unique<tools::NativeTool>(
                               loop_, steady_, tools::native_functions().at("fill").function),
                           "0123456789abcdef"});
  runtime::RuntimeOptions options;
  options.worker = "bench:" + std::to_string(::getpid());
  options.claims = says_ >= 0;
  options.poll = wish.poll;
  runtime_.emplace(runtime::World{loop_, steady_, chance_, *store_, performers_}, options, this);
}

void WorkerProcess::await(const std::function<void(std::function<void()> done)>& ask) {
  ask([this] { loop_.stop(); });
  loop_.run();
}

JobId WorkerProcess::make(const std::shared_ptr<const engine::Plan>& plan, int jobs) {
  JobId last;
  int to_start = jobs, to_end = jobs;
  await([&](const std::function<void()>& done) {
    for (int i = 0; i < kMakingAtOnce; ++i) make_one(plan, to_start, to_end, last, done);
  });
  return last;
}

void WorkerProcess::make_one(const std::shared_ptr<const engine::Plan>& plan, int& to_start,
                             int& to_end, JobId& last, const std::function<void()>& done) {
  if (to_start == 0) return;
  --to_start;
  runtime::NewJobRequest request;
  request.agent = "bench";
  request.plan = plan;
  request.input = Value::object({});
  request.hold = false;
  runtime_->create(std::move(request), [this, plan, &to_start, &to_end, &last,
                                        done](const Result<runtime::Created>& made) {
    if (!made) give_up(made.error());
    last = made->job;
    if (--to_end == 0) return done();
    make_one(plan, to_start, to_end, last, done);
  });
}

void WorkerProcess::signal(const JobId& job, const std::string& key) {
  await([&](const std::function<void()>& done) {
    engine::Act act;
    act.kind = engine::Act::Kind::signal;
    act.id = "signal";
    act.correlation_key = key;
    act.wait_type = "signal";
    runtime_->act(job, std::move(act), [done](const Result<Value>& answer) {
      if (!answer) give_up(answer.error());
      done();
    });
  });
}

void WorkerProcess::on_events(const JobId&, const std::vector<Event>& events) {
  if (says_ < 0) return;
  for (const Event& event : events) {
    if (event.type == EventType::job_running) say_on(says_, Said::What::running);
    if (event.type == EventType::job_waiting) say_on(says_, Said::What::waiting);
    if (event.type == EventType::job_completed) say_on(says_, Said::What::over);
  }
}

}  // namespace ae::bench
