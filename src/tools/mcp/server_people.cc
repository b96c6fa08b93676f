// How calls of the old era wait for people: they are kept open between the try that asked and the one that has the answer.
#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "async/boot_clock.h"
#include "json/json.h"
#include "tools/mcp/judge.h"
#include "tools/mcp/server.h"
#include "tools/mcp/server_flight.h"

namespace ae::tools::mcp {
namespace {

// A state of ours; no server is told it.
constexpr std::string_view kState = "aetheris/open-call/";
constexpr std::size_t kQuestionShown = 200;  // bytes of one, in a warning

Value action(std::string_view word) { return Value::object({{"action", word}}); }

}  // namespace

std::string named(const Server::Tool& tool) {
  return tool.server.empty() ? tool.name : tool.server + "." + tool.name;
}

std::optional<std::uint32_t> asked_at_of(const Value& inputs) {
  const std::string_view state = inputs.is_object() ? inputs.text("state") : std::string_view();
  if (!state.starts_with(kState)) return std::nullopt;
  const std::string_view number = state.substr(kState.size());
  std::uint32_t try_no = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), try_no);
  if (read.ec != std::errc() || read.ptr != number.data() + number.size()) return std::nullopt;
  return try_no;
}

// Over HTTP a question may come on the stream of its call. A program has one stream for all, and so has GET: only when one
// call is open, and no other ever was given up or lost, is it clear whose question it is.
std::shared_ptr<Server::Open> Server::who_asks(const Message& request, std::string& why_not) const {
  std::vector<const Flight*> sent;
  for (const auto& [key, flight] : flights_) {
    if (flight.open && (request.stream == 0 || flight.open->request == request.stream)) {
      sent.push_back(&flight);
    }
  }
  const bool one_stream = request.stream == 0;
  const bool others = one_stream && std::ranges::any_of(kept_, [](const auto& entry) {
                        return !entry.second->outcome;
                      });
  if (sent.size() > 1 || others) {
    why_not = "several calls are open, and the one that asks is unknown";
  }
  if (one_stream && !astray_.empty())
    why_not = "an earlier call was abandoned or lost, and may be the one that asks";
  if (!why_not.empty() || sent.empty()) return nullptr;
  const Flight& flight = *sent.front();
  if (flight.ends != Flight::Ends::by_itself) {
    why_not = "the call is being abandoned";
  } else if (flight.call.ask_expires.count() <= 0) {
    why_not =
        "only `aetheris serve` and `aetheris worker` keep a call open for an answer: `run` ends "
        "when its job is idle, a probe or compensation cannot ask";
  } else if (kept_.size() >= kKeptMax) {
    why_not = "256 calls already wait for answers";
  }
  return why_not.empty() ? flight.open : nullptr;
}

void Server::asks(const Message& request) {
  std::string why_not;
  if (const auto open = who_asks(request, why_not)) {
    const std::string state = std::string(kState) + std::to_string(open->key.second);
    if (auto asked = judge_open_question(request.body, state, session_->used())) {
      return keep(open, request.id, *std::move(asked));
    }
    why_not = "it has no valid answer";
  }
  session_->answer({.id = request.id, .result = action("decline")});
  std::vector<Key> heard;
  for (const auto& [key, flight] : flights_) {
    if (flight.open && (request.stream == 0 || flight.open->request == request.stream)) {
      heard.push_back(key);
    }
  }
  declined(request.body, why_not, heard);
}

// It was done in somebody's name: the jobs say so, and whoever runs them hears it, once for each call.
void Server::declined(const Value& params, const std::string& why, const std::vector<Key>& heard) {
  const Session* const asked_by = session_.get();
  for (const Key& key : heard) {
    const auto found = flights_.find(key);
    if (session_.get() != asked_by) return;
    if (found == flights_.end() || !found->second.open) continue;
    Flight& flight = found->second;
    if (warn_ && !std::exchange(flight.warned, true)) {
      const std::string asked =
          cut_short(printable(scrub(params.text("message"), session_->used()), Lines::escape),
                    kQuestionShown);
      std::string what = "the MCP server of ";
      what.append(named(flight.tool)).append(" asks a user: \"").append(asked);
      warn_(flight.call.job, what.append("\"; it was declined: ").append(why));
    }
    session_->remark(flight.open->request, "a question to a user was declined: " + why);
  }
}

void Server::keep(const std::shared_ptr<Open>& open, const Value& question, Outcome asked) {
  const Key key = open->key;
  Flight& flight = flights_.at(key);
  flight.telling = 0;  // what it asked before has its answer, or soon
  open->question = question;
  keep(open, key, flight.call.ask_expires + kKeptOver);
  answer(key, std::move(asked));
}

void Server::keep(const std::shared_ptr<Open>& open, const Key& key, Duration time) {
  open->kept = true;
  open->key = key;
  open->timer = loop_.after(time, [weak = weak_from_this(), key] {
    if (const auto self = weak.lock()) self->let_go(key, "its question was not answered in time");
  });
  kept_.insert_or_assign(key, open);
  session_->follow(open->request, nullptr);
}

// A server that did not wait for the answer: the next try is told how the call ended.
void Server::keep_reply(Open& open, const Reply& reply) {
  Outcome outcome = judge(reply, open.tool.output_max, session_->used());
  if (reply.how == Reply::How::result) ++answered_;
  open.bytes = canonical(outcome.result).size();
  const bool fits = kept_bytes_ + open.bytes <= kKeptBytesMax;
  if (reply.how == Reply::How::lost || !fits) {
    loop_.forget(open.timer);
    kept_.erase(Key(open.key));
    return watch_idle();
  }
  kept_bytes_ += open.bytes;
  open.question = Value();
  open.outcome = std::move(outcome);
}

// The first try that has the answer.
void Server::go_on(Permit permit, Call call, std::uint32_t asked_at, async::Done<Outcome> done) {
  const auto found = kept_.extract(Key{call.invocation, asked_at});
  if (found.empty()) {
    return loop_.post([done = std::move(done)]() mutable {
      done(ended(OutcomeKind::unknown, false, true, "reset",
                 "the call that asked was lost before its answer: its connection was lost, or the "
                 "process that kept it ended"));
    });
  }
  const std::shared_ptr<Open>& open = found.mapped();
  loop_.forget(open->timer);
  const Key key{call.invocation, call.try_no};
  if (open->outcome) {
    kept_bytes_ -= open->bytes;
    watch_idle();
    return loop_.post(
        [done = std::move(done), open]() mutable { done(*std::move(open->outcome)); });
  }
  Flight& flight = flights_
                       .emplace(key, Flight{.permit = std::move(permit),
                                            .call = std::move(call),
                                            .tool = open->tool,
                                            .done = std::move(done),
                                            .began = async::BootClock().since_start(),
                                            .open = open})
                       .first->second;
  std::move(flight.permit).use(key.first, key.second);
  open->kept = false;
  open->key = key;
  session_->follow(open->request, std::move(flight.call.progress));
  if (!open->question.is_null()) tell(key);
  await(key);
}

// What a person said is a call of its own: it leaves in the time that its try has to be sent, or not at all.
void Server::tell(const Key& key) {
  Flight& flight = flights_.at(key);
  const Value* said = flight.call.inputs["answers"].find(kOpenRequest);
  flight.telling = session_->answer({.id = flight.open->question,
                                     .result = said != nullptr ? *said : action("cancel"),
                                     .send_within = flight.call.send_within,
                                     .timeout = std::min(flight.call.timeout, kAskTime),
                                     .told = [weak = weak_from_this(), key](const Reply& reply) {
                                       if (const auto self = weak.lock()) self->told(key, reply);
                                     }});
}

void Server::told(const Key& key, const Reply& reply) {
  const auto found = flights_.find(key);
  if (found == flights_.end() || std::exchange(found->second.telling, 0) == 0) return;
  Flight& flight = found->second;
  if (reply.how == Reply::How::not_sent || reply.how == Reply::How::unreachable) {
    keep(flight.open, {key.first, *asked_at_of(flight.call.inputs)}, kKeptOver);
    return answer(key, ended(OutcomeKind::failure, true, true, "not_sent",
                             "the answer of the user could not be sent to the MCP server" +
                                 (reply.text.empty() ? "" : ": " + reply.text)));
  }
  flight.open->question = Value();
  if (flight.ends == Flight::Ends::timeout) give_up(flight, "no answer in time");
  if (flight.ends == Flight::Ends::abandoned) give_up(flight, "the caller gave up");
}

// First its server is told `cancel`, which ends most calls; then that nobody waits for it any more.
void Server::let_go(const Key& key, std::string_view why) {
  const auto found = kept_.find(key);
  if (found == kept_.end()) return;
  const std::shared_ptr<Open> open = found->second;
  loop_.forget(open->timer);
  if (!open->outcome && !open->question.is_null()) {
    session_->answer({.id = std::exchange(open->question, Value()), .result = action("cancel")});
    open->timer = loop_.after(kAskTime, [weak = weak_from_this(), key, why = std::string(why)] {
      if (const auto self = weak.lock()) self->let_go(key, why);
    });
    return;
  }
  kept_.erase(found);
  watch_idle();
  if (open->outcome) {
    kept_bytes_ -= open->bytes;
    return;
  }
  astray(*open);
  session_->give_up(open->request, why);
}

// Their connection is gone.
void Server::forget_kept() {
  for (const auto& [key, open] : kept_) loop_.forget(open->timer);
  kept_.clear();
  kept_bytes_ = 0;
}

}  // namespace ae::tools::mcp
