// One line per step: its mark, name and tool, start, duration, and a timeline bar; below it only
// notable details.
#include "cli/trace_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/time.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "cli/trace_details.h"
#include "cli/trace_fields.h"
#include "inspect/step_tree.h"
#include "json/json.h"
#include "log/decisions.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

using engine::StepStatus;

constexpr std::size_t kBar = 24;                   // columns
constexpr std::size_t kNameMax = 28;               // columns of names with their tree
constexpr std::size_t kToolMax = 18;               // columns
constexpr std::size_t kTimes = 20;                 // columns of start and duration
constexpr std::size_t kOutcome = 6;                // minimum columns beside a bar
constexpr std::size_t kUnknownToolMax = 40;        // columns of an unknown tool's name
constexpr std::size_t kUnstartedCallsShown = 128;  // calls of a turn that did not start

std::string right(const std::string& text, std::size_t columns) {
  const std::size_t width = width_of(text);
  return std::string(width < columns ? columns - width : 0, ' ') + text;
}

// When the call was resolved as happened or given up, even if the job continued later.
std::optional<Instant> resolved_at(const Value& node) {
  std::optional<Instant> at;
  for (const Value& one : items_of(node["decisions"])) {
    const std::string_view state = one.text(field::state);
    if (one.text(field::kind) == OutcomeDecided::kKind &&
        (state == "happened" || state == "fail")) {
      at = instant_of(one[field::at]);
    }
  }
  return at;
}

std::optional<Instant> finished_at(const Value& node) {
  const auto at = resolved_at(node);
  return at ? at : instant_of(node["finished_at"]);
}

std::string took_text(const Value& node) {
  const auto from = instant_of(node["started_at"]), to = resolved_at(node);
  return from && to ? span_text(*to - *from) : span_text(node[field::duration_us]);
}

class Trace {
 public:
  Trace(const Value& trace, const TraceStyle& style) : trace_(trace), style_(style) {
    begin_ = instant_of(trace["created_at"]).value_or(Instant{});
    end_ = instant_of(trace["ended_at"]).value_or(begin_);
    for (const char* part : {"nodes", "dropped"}) {
      for (const Value& node : items_of(trace[part])) measure(node, 2, "");
    }
    if (style.width > 0) {
      name_width_ = std::min(name_width_, kNameMax);
      tool_width_ = std::min(tool_width_, kToolMax);
    }
    has_tools_ = tool_width_ > 0 && fits(72);
    // Bars have priority over tools; the rest of a narrow line is for the outcome.
    const std::size_t with_bar = name_width_ + kTimes + 2 + kBar + kOutcome;
    has_bar_ = end_ > begin_ && fits(with_bar);
    if (has_bar_ && !fits(with_bar + 2 + tool_width_)) has_tools_ = false;
  }

  std::string text() {
    head();
    columns();
    const auto nodes = items_of(trace_["nodes"]), dropped = items_of(trace_["dropped"]);
    for (const auto& part : {nodes, dropped}) {
      for (const Value& one : part) {
        node(one, {.trunk = "", .last = &one == &(dropped.empty() ? nodes : dropped).back()});
      }
    }
    foot();
    return std::move(out_);
  }

 private:
  bool fits(std::size_t columns) const { return style_.width == 0 || columns <= style_.width; }

  void put(const Line& line) { out_ += line.text(style_.paint, style_.width) + "\n"; }

  void measure(const Value& node, std::size_t indent, std::string_view scope) {
    name_width_ = std::max(name_width_, indent + 3 + width_of(safe(name_of(node, scope))));
    if (!is_part(node)) tool_width_ = std::max(tool_width_, width_of(safe(tool_of(node))));
    const auto latest = [&](const Value& at) {
      if (const auto time = instant_of(at); time && *time > end_) end_ = *time;
    };
    latest(node["started_at"]);
    latest(node["finished_at"]);
    for (const Value& one : items_of(node["tries"])) latest(one["finished_at"]);
    for (const Value& wait : items_of(node[field::waits])) latest(wait["completed_at"]);
    for (const Value& item : items_of(node["items"])) {
      measure(item, indent + 3, node.text(field::position));
    }
  }

  // `scope`: the position of the scope around it, which its own position begins with; "" = none.
  static std::string name_of(const Value& node, std::string_view scope = {}) {
    if (node[field::position].is_string()) {
      return std::string(node.text(field::position).substr(scope.empty() ? 0 : scope.size() + 1));
    }
    if (node["item"].is_integer()) return fmt::format("[{}]", node["item"].as_int());
    if (node["turn_call"].is_integer()) return fmt::format("[{}]", node["turn_call"].as_int());
    if (node["turn"].is_integer()) return fmt::format("turn {}", node["turn"].as_int() + 1);
    return std::string(node.text(field::node_id));
  }

  // A turn of a loop, not one of its calls.
  static bool is_turn(const Value& node) {
    return node["turn"].is_integer() && !node["turn_call"].is_integer();
  }

  // Its tool is not printed: it is that of the map, or a model.
  static bool is_part(const Value& node) { return node["item"].is_integer() || is_turn(node); }

  // ---- head and foot

  void head() {
    const std::string status(trace_.text("status"));
    Line line;
    line.add(Tint::bold, job_head(trace_)).add(" · ").add(status_tint(status), status);
    if (const std::string took = span_text(trace_[field::duration_us]); !took.empty()) {
      line.add(" · " + took);
    }
    put(line);
    const Value& totals = trace_["totals"];
    const std::size_t tries = natural_of(totals["tries"]), retries = natural_of(totals["repeated"]);
    std::string facts = fmt::format("  {}, {}", short_time(trace_.text("created_at")),
                                    calls_text(tries, retries, "call"));
    if (const std::size_t refused = natural_of(totals["refused"]); refused > 0) {
      facts += fmt::format(", {} refused", refused);
    }
    if (const std::size_t tokens = natural_of(trace_[field::usage]["total_tokens"]); tokens > 0) {
      facts += fmt::format(", {}", counted(tokens, "token"));
    }
    facts += fmt::format("{}, {}", TraceDetails::cost_of(trace_[field::usage]),
                         counted(natural_of(trace_["seq"]), "event"));
    const std::string plan =
        fmt::format(", plan {}", trace_.text(field::plan_hash).substr(0, kTraceKeyShown));
    if (fits(width_of(facts + plan))) facts += plan;
    put(Line().add(Tint::dim, facts));
    if (const std::string_view id = trace_["trace"].text("trace_id"); !id.empty()) {
      put(Line().add(Tint::dim, fmt::format("  trace {}", id)));
    }
    const auto attempts = items_of(trace_["attempts"]);
    if (details_.has_lost_attempt()) {
      for (std::size_t i = 0; i < attempts.size(); ++i) {
        const Value& one = attempts[i];
        const std::string ended(one.text("ended", "running"));
        const bool released = ended == "waiting" || ended == "parked";
        const std::string shown =
            released ? fmt::format("released ({})", ended) : ended + lost_text(one);
        std::string when =
            fmt::format("  attempt {}  {}  ", i + 1, short_time(one.text("started_at")));
        const std::string worker = fmt::format("{}  ", one.text("worker"));
        if (fits(width_of(when) + width_of(worker) + width_of(shown))) when += worker;
        put(Line()
                .add(Tint::dim, when)
                .add(ended == "lost" || ended == "failed" ? Tint::bad : Tint::dim, shown));
      }
    }
    drift();
    budget();
  }

  static std::string lost_text(const Value& attempt) {
    const std::string_view cause = attempt.text("lost");
    return cause == "process_died"       ? ": its process died"
           : cause == "code_worker_lost" ? ": the worker of its code was lost"
           : cause == "lease_expired"    ? ": its lease expired"
                                         : "";
  }

  // The column heads of the steps.
  void columns() {
    if (items_of(trace_["nodes"]).empty()) return;
    std::string text = pad("   NODE", name_width_);
    if (has_tools_) text += "  " + pad("TOOL", tool_width_);
    text += right("START", 10) + right("DURATION", 10);
    if (has_bar_) text += "  " + pad("TIMELINE", kBar);
    put(Line().add(Tint::dim, text + "  STATUS"));
  }

  // When a budget limit was used up, and what it was raised to.
  void budget() {
    for (const Value& one : items_of(trace_[field::budget])) {
      const bool raised = one.text(field::state) == "raised";
      const Value& payload = one[field::payload];
      const std::string by(one.text(field::by));
      std::string what =
          raised ? fmt::format("raised to {}{}{}", canonical(payload), by.empty() ? "" : " by ", by)
                 : fmt::format("used up: {}", payload.text("limit"));
      if (payload[field::asked].is_integer()) {
        what +=
            fmt::format(", {} of {} spent, the next call asks for {}", canonical(payload["spent"]),
                        canonical(payload["most"]), canonical(payload[field::asked]));
      }
      put(Line()
              .add(raised ? Tint::dim : Tint::warn, "  budget  ")
              .add(what)
              .add(Tint::dim, fmt::format(" at event {}", natural_of(one["seq"]))));
    }
  }

  // Differences in the versions and schemas of tools, and in models, within the log.
  void drift() {
    for (const Value& one : items_of(trace_["drift"])) {
      if (one.text("what") == "trial") {
        put(Line()
                .add(Tint::warn, "  trial  ")
                .add(fmt::format("the version {} of the code did not fit; the job keeps {}",
                                 one.text("to", "none"), one.text("from", "none")))
                .add(Tint::dim, fmt::format(" (event {})", natural_of(one["seq"]))));
        continue;
      }
      const auto shown = [&](const char* name) {
        const std::string_view text = one.text(name);
        const bool digest = one.text("what").ends_with("_schema");
        return text.empty() ? "none" : digest ? text.substr(0, kTraceKeyShown) : text;
      };
      std::string what(one.text("what"));
      std::ranges::replace(what, '_', ' ');
      const std::string whose =
          one["tool"].is_string() ? fmt::format("tool \"{}\" ", one.text("tool")) : "";
      put(Line()
              .add(Tint::warn, "  drift  ")
              .add(fmt::format("{}changed during this job: {} {} → {}", whose, what, shown("from"),
                               shown("to")))
              .add(Tint::dim, fmt::format(" (event {})", natural_of(one["seq"]))));
    }
  }

  // For next_commands: a trace names the agent of code by its node only.
  Value failed_job() const {
    const auto is_code = [](const Value& node) { return node.text(field::kind) == field::code; };
    if (!std::ranges::any_of(items_of(trace_["nodes"]), is_code)) return trace_;
    return trace_.with("code_agent", Value::object({}));
  }

  void foot() {
    if (const Value& error = trace_[field::error]; error.is_object()) {
      const std::string_view summary = error.text("summary");
      details_.wrapped("", std::string(error.text(field::code)),
                       summary.empty() ? error.text("message") : summary);
      if (trace_.text("status") != "failed") return;
      for (const NextCommand& next :
           next_commands(failed_job(), {.retry_chain = style_.retry_chain})) {
        if (next.command.starts_with("aetheris ")) {
          details_.command("", next.name == "retry" ? "retry with: " : next.lead, next.command);
        } else {
          out_ += fmt::format("{}{}\n", style_.paint(Tint::dim, next.lead),
                              style_.paint(Tint::bold, next.command));
        }
      }
    } else if (trace_.text("status") == "completed") {
      put(Line().add(Tint::dim, "result ").add(canonical(trace_[field::result])));
    }
  }

  // ---- steps

  std::string bar(const Value& node) const {
    const auto from = instant_of(node["started_at"]);
    if (!from) return {};
    const Instant to = finished_at(node).value_or(end_);
    const double whole = static_cast<double>((end_ - begin_).count());
    const auto column = [&](Instant t) {
      const double part = static_cast<double>((t - begin_).count()) / whole;
      return static_cast<std::size_t>(std::clamp(part, 0.0, 1.0) * kBar);
    };
    const std::size_t first = std::min(column(*from), kBar - 1);
    const std::size_t last = std::clamp(column(to), first + 1, kBar);
    std::string text(first, ' ');
    for (std::size_t i = first; i < last; ++i) text += "━";
    return text;
  }

  struct Place {
    std::string trunk;       // before its branch
    bool last = false;       // of its parent's parts
    std::string_view scope;  // as in name_of
  };

  void node(const Value& node, const Place& place) {
    const std::string& trunk = place.trunk;
    const bool last = place.last;
    const std::string status(node.text("status"));
    const StatusMark mark = mark_of(status);
    const std::string branch = trunk + (last ? "└─ " : "├─ ");
    const std::string below = trunk + (last ? "   " : "│  ");
    const std::size_t used = width_of(branch) + 2;
    Line line;
    line.add(Tint::dim, branch).add(mark.tint, fmt::format("{} ", mark.sign));
    const std::size_t name_width = name_width_ > used ? name_width_ - used : 1;
    line.add(status == to_text(StepStatus::pending) || status == to_text(StepStatus::not_run)
                 ? Tint::dim
                 : Tint::none,
             pad(cut(name_of(node, place.scope), name_width), name_width));
    if (has_tools_) {
      const std::string tool = is_part(node) ? "" : tool_of(node);
      line.add(Tint::dim, "  " + pad(cut(tool, tool_width_), tool_width_));
    }
    const auto started = instant_of(node["started_at"]);
    line.add(Tint::dim, right(started ? fmt::format("+{}", span_text(*started - begin_)) : "", 10));
    line.add(right(took_text(node), 10));
    if (has_bar_) line.add(mark.tint, "  " + pad(bar(node), kBar));
    const std::string word = details_.word_of(node, status);
    if (!word.empty()) line.add(mark.tint, "  " + word);
    put(line);
    // A step's details are printed beside the items of its map.
    const std::vector<const Value*> parts = parts_of(node);
    details_.details(node, status, below + (!parts.empty() ? "│ " : "  "));
    if (!parts.empty()) put_parts(parts, below, node.text(field::position));
  }

  // The items of a map, the turns of a loop or the requests of code; for a turn, its requested calls
  // in order.
  static std::vector<const Value*> parts_of(const Value& node) {
    std::vector<const Value*> parts;
    const auto items = items_of(node["items"]), calls = items_of(node["calls"]);
    for (const Value& call : calls) {
      const auto begun = std::ranges::find(items, call["turn_call"],
                                           [](const Value& item) { return item["turn_call"]; });
      parts.push_back(begun == items.end() ? &call : &*begun);
    }
    if (calls.empty()) {
      for (const Value& item : items) parts.push_back(&item);
    }
    return parts;
  }

  // A requested call that has not started: only its turn contains it.
  static bool is_unstarted_call(const Value& part) { return part.find("call_id") != nullptr; }

  void unstarted_call(const Value& call, const std::string& trunk, bool last) {
    const std::string status(call.text("status"));
    const bool refused = status == "refused";
    const Tint tint = refused ? Tint::bad : Tint::dim;
    const std::string branch = trunk + (last ? "└─ " : "├─ ");
    const std::size_t used = width_of(branch) + 2;
    Line line;
    line.add(Tint::dim, branch).add(tint, refused ? "✗ " : "· ");
    line.add(pad(name_of(call), name_width_ > used ? name_width_ - used : 1));
    line.add(Tint::dim,
             "  " + pad(style_.width == 0
                            ? safe(call.text("tool"))
                            : cut(call.text("tool"), std::min(kUnknownToolMax, style_.width / 3)),
                        tool_width_));
    const Value& error = call[field::error];
    line.add(tint, "  " + (refused ? std::string(error.text(field::code))
                           : status == to_text(StepStatus::not_run) ? std::string("not run")
                                                                    : std::string()));
    if (!error.text("message").empty()) line.add(": " + first_line(error.text("message")));
    put(line);
  }

  static std::string tool_of(const Value& node) {
    if (node["tool"].is_string()) return std::string(node.text("tool"));
    const auto waits = items_of(node[field::waits]);
    return waits.empty() ? std::string(node.text(field::kind))
                         : std::string(waits[0].text(field::wait_type));
  }

  // It and all its parts succeeded, at the first try.
  static bool is_fine(const Value& part) {
    const std::size_t tries_max = part["child"].text("status") == "completed" ? 2 : 1;
    if (is_unstarted_call(part) || part.text("status") != to_text(StepStatus::done) ||
        part["tries"].size() > tries_max)
      return false;
    return std::ranges::all_of(parts_of(part), [](const Value* below) { return is_fine(*below); });
  }

  // Prints the first parts, and all with problems.
  void put_parts(const std::vector<const Value*>& parts, const std::string& trunk,
                 std::string_view scope) {
    std::vector<const Value*> shown;
    std::size_t done = 0, more = 0, unstarted_call = 0;
    for (const Value* part : parts) {
      if (is_unstarted_call(*part) && ++unstarted_call > kUnstartedCallsShown) {
        more++;
      } else if (shown.size() >= kTracePartsShown && is_fine(*part)) {
        done++;
      } else {
        shown.push_back(part);
      }
    }
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const bool last = i + 1 == shown.size() && done + more == 0;
      is_unstarted_call(*shown[i])
          ? this->unstarted_call(*shown[i], trunk, last)
          : node(*shown[i], {.trunk = trunk, .last = last, .scope = scope});
    }
    if (done > 0) {
      const char* what = is_turn(*parts[0])                         ? "more turn"
                         : (*parts[0])[field::position].is_string() ? "more request"
                                                                    : "more item";
      put(Line().add(Tint::dim, fmt::format("{}{} … {} done", trunk, more > 0 ? "├─" : "└─",
                                            counted(done, what))));
    }
    if (more > 0) {
      put(Line().add(Tint::bad,
                     fmt::format("{}└─ … {} not made", trunk, counted(more, "more call"))));
    }
  }

  const Value& trace_;
  const TraceStyle& style_;
  Instant begin_, end_;
  std::size_t name_width_ = 8, tool_width_ = 0;
  bool has_tools_ = false, has_bar_ = false;
  std::string out_;
  TraceDetails details_{trace_, style_, out_};
};

}  // namespace

std::string trace_text(const Value& trace, const TraceStyle& style) {
  return Trace(trace, style).text();
}

std::string duration_shown(Duration duration) {
  const std::int64_t us = std::max<std::int64_t>(duration.count(), 0);
  const auto tenths = [](std::int64_t whole, std::int64_t tenth, const char* unit) {
    return fmt::format("{}.{}{}", whole, tenth, unit);
  };
  if (us < 10'000) return tenths(us / 1'000, us / 100 % 10, " ms");
  if (us < 10'000'000) return fmt::format("{} ms", us / 1'000);
  const std::int64_t s = us / 1'000'000;
  if (s < 600) return tenths(s, us / 100'000 % 10, " s");
  if (s < 7'200) return fmt::format("{} min", s / 60);
  if (s < 172'800) return fmt::format("{} h", s / 3'600);
  return fmt::format("{} d", s / 86'400);
}

}  // namespace ae::cli
