// The rules about models: one request per try, the answer is recorded and replayed from then on,
// and its usage is counted. (external_world.cc checks that no request is sent after a recorded
// answer.)
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/loop/thread.h"
#include "json/json.h"
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

// A call that summarizes, and what its model received and answered.
struct SummaryCall {
  Value from, messages;
  std::string text;
};

// The messages of a request as its model received them; null: none arrived.
Value received_messages(const JobEvidence& e, const CallHistory& call) {
  const KeyRecord* record = record_of(e, call.key);
  return record && !record->arrivals.empty() ? record->arrivals[0].messages : Value();
}

std::vector<Value> without_system(const Value& messages) {
  std::vector<Value> kept(messages.items().begin(), messages.items().end());
  std::erase_if(kept, [](const Value& message) { return message.text("role") == "system"; });
  return kept;
}

// The messages that a summary was made of, one as JSON in each line.
std::vector<Value> summarized_messages(const Value& request) {
  std::vector<Value> messages;
  std::istringstream lines{std::string(request.items().back().text("content"))};
  for (std::string line; std::getline(lines, line);) {
    messages.push_back(parse_json(line).value_or(Value()));
  }
  return messages;
}

// Does a request continue the one before it: with the same messages from the `left_out` first ones
// on, or with a user's message only, if the answer to it is left out, too?
bool continues(std::span<const Value> before, std::span<const Value> left_out,
               std::span<const Value> request) {
  const auto is_of_user = [](const Value& message) { return message.text("role") == "user"; };
  if (left_out.size() > before.size()) {
    return std::ranges::equal(before, left_out.first(before.size())) &&
           !is_of_user(left_out[before.size()]) && std::ranges::all_of(request, is_of_user);
  }
  const auto kept = before.subspan(left_out.size());
  return std::ranges::equal(left_out, before.first(left_out.size())) &&
         request.size() > kept.size() && std::ranges::equal(kept, request.first(kept.size())) &&
         request[kept.size()].text("role") == "assistant";
}

// `before`: the messages of the previous turn's request; `request`: of the one with the summary.
bool covers_what_is_left_out(const Value& before, const SummaryCall& summary,
                             const Value& request) {
  const std::vector<Value> left_out = summarized_messages(summary.messages);
  const std::vector<Value> all = without_system(before), sent = without_system(request);
  if (left_out.empty() || sent.size() < 2 || !sent[0].text("content").ends_with(summary.text)) {
    return false;
  }
  const auto rest = std::span(sent).subspan(1);
  // The message of an exchange stays if the exchange began in what is left out.
  const bool has_task = std::ranges::find(left_out, rest[0]) != left_out.end();
  return continues(all, left_out, rest) || (has_task && continues(all, left_out, rest.subspan(1)));
}

// What the model of a call answered, as the log has it; "": it did not.
std::string answer_text(const CallHistory& call) {
  for (const auto& [number, t] : call.tries) {
    if (t.is_answered()) return std::string(t.result.text("text"));
  }
  return {};
}

void summaries_cover_what_is_left_out(const JobEvidence& e, Checker& checker) {
  struct Loop {
    Value messages;  // of the newest turn's request
    std::optional<SummaryCall> summary;
  };
  std::map<std::string, Loop, std::less<>> loops;  // by node
  const auto calls = calls_of(e.events);
  for (const Event& event : e.events) {
    const auto* started = as<ToolInvocationStarted>(event);
    if (!started || started->try_no != 1 || !started->tool_name.starts_with(kModelToolPrefix)) {
      continue;
    }
    Loop& loop = loops[started->node_id];
    const CallHistory& call = calls.at(started->invocation_id.text);
    const Value& arguments = started->arguments.value;
    const Value messages = received_messages(e, call);
    if (const Value& from = arguments["summarizes"]; !from.is_null()) {
      checker.fail_if(loop.summary.has_value(), "{} is summarized twice for one turn",
                      started->node_id);
      loop.summary = SummaryCall{from, messages, answer_text(call)};
      continue;
    }
    const std::string_view text = arguments.text("summary");
    const auto summary = std::exchange(loop.summary, std::nullopt);
    const Value before = std::exchange(loop.messages, messages);
    if (text.empty()) {
      checker.fail_if(summary && arguments["from"].is_null() && !summary->text.empty(),
                      "the summary for event {} is not used", event.seq);
      if (!arguments["from"].is_null()) checker.mark("context.left_out");
      continue;
    }
    checker.mark("context.summarized");
    checker.fail_if(!summary || summary->text != text || summary->from != arguments["from"],
                    "event {} has a summary that no model gave it", event.seq);
    if (!summary || !before.is_array() || !messages.is_array()) continue;
    checker.mark("context.summary_checked");
    checker.fail_if(!covers_what_is_left_out(before, *summary, messages),
                    "the summary of event {} is not that of the messages that it leaves out",
                    event.seq);
  }
}

constexpr Rule kModelRules[] = {
    {"M1 a recorded model answer is replayed, never requested again", answers_are_injected},
    {"M2 a model receives one request per try", one_request_per_try},
    {"M3 model usage is counted", usage_is_counted},
    {"M4 an unknown model call needs no decision by a user", models_need_no_approval},
    {"M5 a thread answers each message once, in order", messages_are_answered_once},
    {"M6 a summary is made once, of the messages that it replaces",
     summaries_cover_what_is_left_out},
};

}  // namespace

std::span<const Rule> model_rules() { return kModelRules; }

}  // namespace ae::sim
