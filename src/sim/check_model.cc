// The rules about models: one request per try, the answer is recorded and replayed from then on,
// and its usage is counted. (external_world.cc checks that no request is sent after a recorded
// answer.)
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/loop/thread.h"
#include "log/field_names.h"
#include "sim/checker.h"

namespace ae::sim {
namespace {

bool is_model(const CallHistory& call) { return call.tool.starts_with(kModelToolPrefix); }

void answers_are_injected(const JobEvidence& e, Checker& checker) {
  for (const auto& [invocation, call] : calls_of(e.events)) {
    if (!is_model(call)) continue;
    const KeyRecord* record = record_of(e, call.key);
    std::int64_t answered_try = 0;  // the try
    for (const auto& [number, t] : call.tries) {
      checker.fail_if(answered_try > 0, "{} try {} was made after try {} was answered", call.tool,
                      number, answered_try);
      if (!t.is_answered() || answered_try > 0) continue;
      answered_try = number;
      bool is_model_answer = t.result["invalid"].is_bool();
      for (const Arrival& arrival : record ? record->arrivals : std::vector<Arrival>()) {
        is_model_answer =
            is_model_answer || (arrival.try_no == number && arrival.answer == t.result);
      }
      checker.fail_if(!is_model_answer,
                      "{} try {}: the recorded answer is not the one that was returned", call.tool,
                      number);
      checker.mark("model.answered");
    }
  }
}

void one_request_per_try(const JobEvidence& e, Checker& checker) {
  for (const KeyRecord* record : e.touched) {
    if (!record->tool.starts_with(kModelToolPrefix)) continue;
    std::set<std::uint32_t> tries;
    for (const Arrival& arrival : record->arrivals) {
      checker.fail_if(!tries.insert(arrival.try_no).second, "{} try {} arrived twice", record->tool,
                      arrival.try_no);
    }
  }
}

void usage_is_counted(const JobEvidence& e, Checker& checker) {
  std::uint64_t tries = 0, withdrawn = 0, tokens = 0;
  for (const auto& [invocation, call] : calls_of(e.events)) {
    if (!is_model(call)) continue;
    tries += call.tries.size();
    bool paid = false;
    for (const auto& [number, t] : call.tries) {
      withdrawn += t.is_first_outcome_definite && t.error == "not_sent";
      if (!t.is_answered() || std::exchange(paid, true)) continue;
      const Value& total = t.result[field::usage]["total_tokens"];
      if (total.is_integer()) tokens += static_cast<std::uint64_t>(total.as_int());
    }
  }
  const engine::ModelUsage& bill = e.state.models;
  checker.fail_if(bill.tries != tries || bill.withdrawn != withdrawn,
                  "the state counts {} tries, {} withdrawn; the log has {}, {}", bill.tries,
                  bill.withdrawn, tries, withdrawn);
  checker.fail_if(bill.total_tokens != tokens, "the state counts {} tokens, the log {}",
                  bill.total_tokens, tokens);
}

void models_need_no_approval(const JobEvidence& e, Checker& checker) {
  std::set<std::string, std::less<>> steps;
  for (const auto& [invocation, call] : calls_of(e.events)) {
    if (is_model(call)) steps.insert(call.step);
  }
  for (const Event& event : e.events) {
    checker.fail_if(event.type == EventType::wait_opened && steps.contains(step_of(event)),
                    "event {} waits for a user", event.seq);
  }
}

// The text of each message that the thread took, in the order of its waits.
std::vector<std::string> taken_messages(const JobEvidence& e, const Value& step) {
  std::map<std::string, std::string, std::less<>> texts;  // by message id
  std::vector<std::string> taken;
  for (const Event& event : e.events) {
    if (const auto* message = as<AgentMessage>(event);
        message && message->channel == engine::kThreadChannel && !message->control) {
      texts[message->message_id] = engine::message_text_of(message->payload.value);
    }
    const auto* end = as<WaitCompleted>(event);
    if (!end || Value(end->step_id.text) != step || end->outcome != "signalled") continue;
    if (const auto text = texts.find(or_empty(end->signal_id)); text != texts.end()) {
      taken.push_back(text->second);
    }
  }
  return taken;
}

// The first turn of each exchange but the first has the next message that the thread took.
void messages_are_answered_once(const JobEvidence& e, Checker& checker) {
  const engine::Step* const thread = engine::thread_of(e.state);
  if (thread == nullptr) return;
  const std::vector<std::string> taken = taken_messages(e, thread->id.text);
  std::vector<std::string> begun;
  for (const Event& event : e.events) {
    const auto* call = as<ToolInvocationStarted>(event);
    if (!call || call->try_no != 1 || !call->tool_name.starts_with(kModelToolPrefix)) continue;
    const Value& messages = call->arguments.value["messages"];
    if (messages.is_array()) begun.emplace_back(messages.items().back().text("content"));
  }
  checker.fail_if(begun.size() > taken.size() + 1, "{} messages, {} exchanges", taken.size() + 1,
                  begun.size());
  for (std::size_t i = 1; i < begun.size() && i <= taken.size(); ++i) {
    checker.fail_if(begun[i] != taken[i - 1], "exchange {} has \"{}\", the message was \"{}\"", i,
                    begun[i], taken[i - 1]);
    checker.mark("thread.exchange");
  }
  const bool waits = thread->loop && thread->loop->waiting;
  checker.fail_if(waits && begun.size() != taken.size() + 1, "it waits after {} of {} messages",
                  begun.size(), taken.size() + 1);
}

constexpr Rule kModelRules[] = {
    {"M1 a recorded model answer is replayed, never requested again", answers_are_injected},
    {"M2 a model receives one request per try", one_request_per_try},
    {"M3 model usage is counted", usage_is_counted},
    {"M4 an unknown model call needs no decision by a user", models_need_no_approval},
    {"M5 a thread answers each message once, in order", messages_are_answered_once},
};

}  // namespace

std::span<const Rule> model_rules() { return kModelRules; }

}  // namespace ae::sim
