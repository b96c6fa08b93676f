// One line per step: its mark, name and tool, start, duration, and a timeline bar; below it only
// notable details.
#include "cli/trace_text.h"

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
#include "json/json.h"

namespace ae::cli {
namespace {

constexpr std::size_t kBar = 24;                   // columns
constexpr std::size_t kNameMax = 28;               // columns of names with their tree
constexpr std::size_t kToolMax = 18;               // columns
constexpr std::size_t kTimes = 20;                 // columns of start and duration
constexpr std::size_t kOutcome = 6;                // minimum columns beside a bar
constexpr std::size_t kItemsShown = 10;            // of a map, if they succeeded
constexpr std::size_t kKeyShown = 12;              // digits of a key: enough to identify a call
constexpr std::size_t kErrorLines = 10;            // per try
constexpr std::size_t kUnknownToolMax = 40;        // columns of an unknown tool's name
constexpr std::size_t kUnstartedCallsShown = 128;  // calls of a turn that did not start

struct StatusMark {
  const char* sign;
  Tint tint;
};

StatusMark mark_of(std::string_view status) {
  if (status == "done") return {"✓", Tint::good};
  if (status == "failed") return {"✗", Tint::bad};
  if (status == "skipped") return {"-", Tint::dim};
  if (status == "running") return {"▸", Tint::accent};
  if (status == "waiting") return {"…", Tint::warn};
  if (status == "backoff") return {"↻", Tint::warn};
  if (status == "in_doubt") return {"?", Tint::bad};
  return {"·", Tint::dim};  // pending, not_run
}

std::optional<Instant> instant(const Value& value) {
  if (!value.is_string()) return std::nullopt;
  const auto parsed = instant_from_text(value.as_string());
  return parsed ? std::optional(*parsed) : std::nullopt;
}

// Empty if it is not an array.
std::span<const Value> list(const Value& value) {
  return value.is_array() ? value.items() : std::span<const Value>();
}

std::string span_text(Duration duration) { return duration_shown(duration); }

std::string span_text(const Value& us) {
  return us.is_integer() ? span_text(Duration(us.as_int())) : std::string();
}

std::string right(const std::string& text, std::size_t columns) {
  const std::size_t width = width_of(text);
  return std::string(width < columns ? columns - width : 0, ' ') + text;
}

std::size_t natural(const Value& value) {
  return value.is_integer() && value.as_int() > 0 ? static_cast<std::size_t>(value.as_int()) : 0;
}

// When the call was resolved as happened or given up, even if the job continued later.
std::optional<Instant> resolved_at(const Value& node) {
  std::optional<Instant> at;
  for (const Value& one : list(node["decisions"])) {
    const std::string_view state = one.text("state");
    if (one.text("kind") == "in_doubt" && (state == "happened" || state == "fail")) {
      at = instant(one["at"]);
    }
  }
  return at;
}

std::optional<Instant> finished_at(const Value& node) {
  const auto at = resolved_at(node);
  return at ? at : instant(node["finished_at"]);
}

std::string took_text(const Value& node) {
  const auto from = instant(node["started_at"]), to = resolved_at(node);
  return from && to ? span_text(*to - *from) : span_text(node["duration_us"]);
}

class Trace {
 public:
  Trace(const Value& trace, const TraceStyle& style) : trace_(trace), style_(style) {
    begin_ = instant(trace["created_at"]).value_or(Instant{});
    end_ = instant(trace["ended_at"]).value_or(begin_);
    for (const char* part : {"nodes", "dropped"}) {
      for (const Value& node : list(trace[part])) measure(node, 2);
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
    const auto attempts = list(trace["attempts"]);
    lost_ = std::ranges::any_of(
        attempts, [](const Value& attempt) { return attempt.text("ended") == "lost"; });
  }

  std::string text() {
    head();
    columns();
    const auto nodes = list(trace_["nodes"]), dropped = list(trace_["dropped"]);
    for (const auto& part : {nodes, dropped}) {
      for (const Value& one : part) {
        node(one, "", &one == &(dropped.empty() ? nodes : dropped).back());
      }
    }
    foot();
    return std::move(out_);
  }

 private:
  bool fits(std::size_t columns) const { return style_.width == 0 || columns <= style_.width; }

  void put(const Line& line) { out_ += line.text(style_.paint, style_.width) + "\n"; }

  void measure(const Value& node, std::size_t indent) {
    name_width_ = std::max(name_width_, indent + 3 + width_of(safe(name_of(node))));
    if (!is_part(node)) tool_width_ = std::max(tool_width_, width_of(safe(tool_of(node))));
    const auto latest = [&](const Value& at) {
      if (const auto time = instant(at); time && *time > end_) end_ = *time;
    };
    latest(node["started_at"]);
    latest(node["finished_at"]);
    for (const Value& one : list(node["tries"])) latest(one["finished_at"]);
    for (const Value& wait : list(node["waits"])) latest(wait["completed_at"]);
    for (const Value& item : list(node["items"])) measure(item, indent + 3);
  }

  static std::string name_of(const Value& node) {
    if (node["item"].is_integer()) return "[" + std::to_string(node["item"].as_int()) + "]";
    if (node["turn_call"].is_integer()) {
      return "[" + std::to_string(node["turn_call"].as_int()) + "]";
    }
    if (node["turn"].is_integer()) return "turn " + std::to_string(node["turn"].as_int() + 1);
    return std::string(node.text("node_id"));
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
    if (const std::string took = span_text(trace_["duration_us"]); !took.empty()) {
      line.add(" · " + took);
    }
    put(line);
    const Value& totals = trace_["totals"];
    const std::size_t tries = natural(totals["tries"]), retries = natural(totals["repeated"]);
    std::string facts =
        "  " + short_time(trace_.text("created_at")) + ", " + calls_text(tries, retries, "call");
    if (const std::size_t refused = natural(totals["refused"]); refused > 0) {
      facts += ", " + std::to_string(refused) + " refused";
    }
    if (const std::size_t tokens = natural(trace_["usage"]["total_tokens"]); tokens > 0) {
      facts += ", " + counted(tokens, "token");
    }
    facts += cost_of(trace_["usage"]);
    facts += ", " + counted(natural(trace_["seq"]), "event");
    const std::string plan = ", plan " + std::string(trace_.text("plan_hash").substr(0, kKeyShown));
    if (fits(width_of(facts + plan))) facts += plan;
    put(Line().add(Tint::dim, facts));
    if (const std::string_view id = trace_["trace"].text("trace_id"); !id.empty()) {
      put(Line().add(Tint::dim, "  trace " + std::string(id)));
    }
    const auto attempts = list(trace_["attempts"]);
    if (lost_) {
      for (std::size_t i = 0; i < attempts.size(); ++i) {
        const Value& one = attempts[i];
        const std::string ended(one.text("ended", "running"));
        const bool released = ended == "waiting" || ended == "parked";
        const std::string shown = released ? "released (" + ended + ")" : ended + lost_text(one);
        std::string when =
            "  attempt " + std::to_string(i + 1) + "  " + short_time(one.text("started_at")) + "  ";
        const std::string worker = std::string(one.text("worker")) + "  ";
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
    return cause == "process_died"    ? ": its process died"
           : cause == "lease_expired" ? ": its lease expired"
                                      : "";
  }

  // The column heads of the steps.
  void columns() {
    if (list(trace_["nodes"]).empty()) return;
    std::string text = pad("   NODE", name_width_);
    if (has_tools_) text += "  " + pad("TOOL", tool_width_);
    text += right("START", 10) + right("DURATION", 10);
    if (has_bar_) text += "  " + pad("TIMELINE", kBar);
    put(Line().add(Tint::dim, text + "  STATUS"));
  }

  // When a budget limit was used up, and what it was raised to.
  void budget() {
    for (const Value& one : list(trace_["budget"])) {
      const bool raised = one.text("state") == "raised";
      const Value& payload = one["payload"];
      const std::string by(one.text("by"));
      std::string what = raised
                             ? "raised to " + canonical(payload) + (by.empty() ? "" : " by " + by)
                             : "used up: " + std::string(payload.text("limit"));
      if (payload["asked"].is_integer()) {
        what += ", " + canonical(payload["spent"]) + " of " + canonical(payload["most"]) +
                " spent, the next call asks for " + canonical(payload["asked"]);
      }
      put(Line()
              .add(raised ? Tint::dim : Tint::warn, "  budget  ")
              .add(what)
              .add(Tint::dim, " at event " + std::to_string(natural(one["seq"]))));
    }
  }

  // Differences in the versions and schemas of tools, and in models, within the log.
  void drift() {
    for (const Value& one : list(trace_["drift"])) {
      const auto shown = [&](const char* name) {
        const std::string_view text = one.text(name);
        const bool digest = one.text("what").ends_with("_schema");
        return text.empty() ? std::string("none")
                            : std::string(digest ? text.substr(0, kKeyShown) : text);
      };
      std::string what(one.text("what"));
      std::ranges::replace(what, '_', ' ');
      put(Line()
              .add(Tint::warn, "  drift  ")
              .add((one["tool"].is_string() ? "tool \"" + std::string(one.text("tool")) + "\" "
                                            : std::string()) +
                   "changed during this job: " + what + " " + shown("from") + " → " + shown("to"))
              .add(Tint::dim, " (event " + std::to_string(natural(one["seq"])) + ")"));
    }
  }

  void foot() {
    if (const Value& error = trace_["error"]; error.is_object()) {
      const std::string_view summary = error.text("summary");
      wrapped("", std::string(error.text("code")),
              summary.empty() ? error.text("message") : summary);
      if (trace_.text("status") != "failed") return;
      for (const NextCommand& next : next_commands(trace_, {.retry_chain = style_.retry_chain})) {
        if (next.command.starts_with("aetheris ")) {
          command("", next.name == "retry" ? "retry with: " : next.lead, next.command);
        } else {
          out_ +=
              style_.paint(Tint::dim, next.lead) + style_.paint(Tint::bold, next.command) + "\n";
        }
      }
    } else if (trace_.text("status") == "completed") {
      put(Line().add(Tint::dim, "result ").add(canonical(trace_["result"])));
    }
  }

  // ---- steps

  std::string bar(const Value& node) const {
    const auto from = instant(node["started_at"]);
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

  void node(const Value& node, const std::string& trunk, bool last) {
    const std::string status(node.text("status"));
    const StatusMark mark = mark_of(status);
    const std::string branch = trunk + (last ? "└─ " : "├─ ");
    const std::string below = trunk + (last ? "   " : "│  ");
    const std::size_t used = width_of(branch) + 2;
    Line line;
    line.add(Tint::dim, branch).add(mark.tint, std::string(mark.sign) + " ");
    const std::size_t name_width = name_width_ > used ? name_width_ - used : 1;
    line.add(status == "pending" || status == "not_run" ? Tint::dim : Tint::none,
             pad(cut(name_of(node), name_width), name_width));
    if (has_tools_) {
      const std::string tool = is_part(node) ? "" : tool_of(node);
      line.add(Tint::dim, "  " + pad(cut(tool, tool_width_), tool_width_));
    }
    const auto started = instant(node["started_at"]);
    line.add(Tint::dim, right(started ? "+" + span_text(*started - begin_) : "", 10));
    line.add(right(took_text(node), 10));
    if (has_bar_) line.add(mark.tint, "  " + pad(bar(node), kBar));
    const std::string word = word_of(node, status);
    if (!word.empty()) line.add(mark.tint, "  " + word);
    put(line);
    // A step's details are printed beside the items of its map.
    const std::vector<const Value*> parts = parts_of(node);
    details(node, status, below + (!parts.empty() ? "│ " : "  "));
    if (!parts.empty()) put_parts(parts, below);
  }

  // The items of a map or the turns of a loop; for a turn, its requested calls in order.
  static std::vector<const Value*> parts_of(const Value& node) {
    std::vector<const Value*> parts;
    const auto items = list(node["items"]), calls = list(node["calls"]);
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
    const Value& error = call["error"];
    line.add(tint, "  " + (refused               ? std::string(error.text("code"))
                           : status == "not_run" ? std::string("not run")
                                                 : std::string()));
    if (!error.text("message").empty()) line.add(": " + first_line(error.text("message")));
    put(line);
  }

  static std::string tool_of(const Value& node) {
    if (node["tool"].is_string()) return std::string(node.text("tool"));
    const auto waits = list(node["waits"]);
    return waits.empty() ? std::string(node.text("kind")) : std::string(waits[0].text("wait_type"));
  }

  std::string word_of(const Value& node, const std::string& status) const {
    std::string word = why_of(node, status);
    const bool part = node["item"].is_integer() || node["turn"].is_integer();
    if (part || !node["dropped_by"].is_integer()) return word;
    if (!word.empty()) word += ", ";
    word += "dropped by plan ";
    return word += std::to_string(natural(node["dropped_by"]));
  }

  // Recorded by an attempt before the last one that was lost: a suspension for a timer or approval
  // loses nothing.
  bool replayed(const Value& node) const {
    if (node["replayed"] != Value(true)) return false;
    bool after = false;
    for (const Value& attempt : list(trace_["attempts"])) {
      after = after || attempt.text("attempt_id") == node.text("executed_by");
      if (after && attempt.text("ended") == "lost") return true;
    }
    return false;
  }

  // The status text of a step, unless it is simply done.
  std::string why_of(const Value& node, const std::string& status) const {
    if (node["imported"] == Value(true)) return "imported";
    if (status == "done") return replayed(node) ? "replayed" : "";
    if (status == "in_doubt") return "outcome unknown";
    if (status == "not_run") return "not run";
    if (node["items"].size() > 0 && status == "running") {
      std::size_t done = 0;
      for (const Value& item : list(node["items"])) done += item.text("status") == "done";
      return std::to_string(done) + " of " + std::to_string(node["items"].size()) + " begun done";
    }
    return status == "pending" ? "" : status;
  }

  // It and all its parts succeeded, at the first try.
  static bool is_fine(const Value& part) {
    if (is_unstarted_call(part) || part.text("status") != "done" || part["tries"].size() > 1)
      return false;
    return std::ranges::all_of(parts_of(part), [](const Value* below) { return is_fine(*below); });
  }

  // Prints the first parts, and all with problems.
  void put_parts(const std::vector<const Value*>& parts, const std::string& trunk) {
    std::vector<const Value*> shown;
    std::size_t done = 0, more = 0, unstarted_call = 0;
    for (const Value* part : parts) {
      if (is_unstarted_call(*part) && ++unstarted_call > kUnstartedCallsShown) {
        more++;
      } else if (shown.size() >= kItemsShown && is_fine(*part)) {
        done++;
      } else {
        shown.push_back(part);
      }
    }
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const bool last = i + 1 == shown.size() && done + more == 0;
      is_unstarted_call(*shown[i]) ? this->unstarted_call(*shown[i], trunk, last)
                                   : node(*shown[i], trunk, last);
    }
    if (done > 0) {
      const char* what = is_turn(*parts[0]) ? "more turn" : "more item";
      put(Line().add(Tint::dim,
                     trunk + (more > 0 ? "├─ … " : "└─ … ") + counted(done, what) + " done"));
    }
    if (more > 0) {
      put(Line().add(Tint::bad, trunk + "└─ … " + counted(more, "more call") + " not made"));
    }
  }

  // ---- below a step

  void detail(const std::string& trunk, Tint tint, const std::string& text) {
    const char* indent = "";
    for (const std::string& line : message_lines(text)) {
      put(Line().add(Tint::dim, trunk + indent).add(tint, line));
      indent = "  ";
    }
  }

  void details(const Value& node, const std::string& status, const std::string& trunk) {
    const bool plain = node["item"].is_integer() || node["turn"].is_integer();
    if (node["effect"].is_object() && !(plain && status == "done" && !style_.verbose)) {
      effect(node, trunk);
    }
    if (!style_.verbose && !node["turn"].is_integer()) applied_items(node, trunk);
    if (node["model"].text("answered") != "") model(node["model"], trunk);
    for (const Value& change : list(node["changes"])) this->change(change, trunk);
    put_tries(node, trunk);
    for (const Value& wait : list(node["waits"])) this->wait(node, wait, trunk);
    for (const Value& probe : list(node["probes"])) put_side_call(probe, "probe: ", trunk);
    if (node["compensation"].is_object()) put_side_call(node["compensation"], "undo: ", trunk);
    if (status == "failed" && node["error"].is_object()) {
      const std::string code(node["error"].text("code"));
      const auto all = list(node["tries"]);
      // The error of a try is printed beside it. A different one is printed once, here or in the
      // foot.
      const Value& last_try_error = all.empty() ? Value() : all.back()["error"];
      const Value& end = trace_["error"];
      const bool at_foot = end.text("code") == code &&
                           end.text("message") == node["error"].text("message") &&
                           (last_try_error.text("code") == code || !end.text("summary").empty());
      const bool is_shown =
          at_foot || (last_try_error.text("code") == code &&
                      last_try_error.text("message") == node["error"].text("message"));
      if (!is_shown) wrapped(trunk, code, node["error"].text("message"));
    }
  }

  // A call that belongs to the step's call, such as a probe.
  void put_side_call(const Value& side, const char* what, const std::string& trunk) {
    const std::string status(side.text("status"));
    const StatusMark mark = mark_of(status);
    put(Line()
            .add(Tint::dim, trunk)
            .add(mark.tint, std::string(mark.sign) + " ")
            .add(what + std::string(side.text("tool")))
            .add(Tint::dim, "  " + span_text(side["duration_us"]))
            .add(mark.tint, status == "done" ? "" : "  " + word_of(side, status)));
    details(side, status, trunk + "  ");
  }

  // Prints tries and decisions in their order.
  void put_tries(const Value& node, const std::string& trunk) {
    const auto tries = list(node["tries"]);
    const auto decisions = list(node["decisions"]);
    const bool plain = tries.size() == 1 && tries[0].text("outcome") == "success" &&
                       tries[0]["caught_up"] != Value(true);
    std::size_t next = 0;
    const auto decisions_before = [&](std::size_t seq) {
      for (; next < decisions.size() && natural(decisions[next]["seq"]) < seq; ++next) {
        decision(decisions[next], trunk);
      }
    };
    for (const Value& one : tries) {
      decisions_before(natural(one["seq"]));
      if (!plain) this->put_try(one, trunk);
    }
    decisions_before(std::size_t(-1));
  }

  // Errors are wrapped at blanks, never cut.
  void wrapped(const std::string& trunk, const std::string& code, std::string_view message) {
    bool first = true;
    for (const std::string& line :
         message_lines(code + (message.empty() ? "" : ": " + std::string(message)))) {
      wrapped_line(first ? trunk : trunk + "  ", first ? code : "", line);
      first = false;
    }
  }

  void wrapped_line(const std::string& trunk, const std::string& code, std::string rest) {
    const std::size_t room = style_.width == 0                     ? std::string::npos
                             : style_.width > width_of(trunk) + 20 ? style_.width - width_of(trunk)
                                                                   : 20;
    bool first = true;
    while (!rest.empty()) {
      std::string part = rest;
      if (width_of(rest) > room) {
        part = cut(rest, room);
        part.resize(part.size() - std::string_view("…").size());
        if (const std::size_t blank = part.rfind(' '); blank != part.npos && blank > 0) {
          part.resize(blank);
        }
      }
      rest.erase(0, part.size());
      rest.erase(
          0, rest.find_first_not_of(' ') == rest.npos ? rest.size() : rest.find_first_not_of(' '));
      const std::size_t head = first ? std::min(code.size(), part.size()) : 0;
      out_ += style_.paint(Tint::dim, trunk) + style_.paint(Tint::bad, part.substr(0, head)) +
              part.substr(head) + "\n";
      first = false;
    }
  }

  // A summary of the effects of a map's items; each item has its own only with --verbose.
  void applied_items(const Value& node, const std::string& trunk) {
    std::string kind;
    std::size_t applied = 0, unknown = 0, undone = 0;
    for (const Value& item : list(node["items"])) {
      const std::string_view of_item = item["effect"].text("effect_class");
      if (!item["item"].is_integer() || of_item.empty() || of_item == "read") continue;
      kind = of_item;
      const std::string_view world = item.text("world");
      applied += world == "changed";
      unknown += world == "unknown";
      undone += world == "rolled_back";
    }
    if (kind.empty()) return;
    std::string text = counted(applied, "item") + " applied";
    if (unknown > 0) text += ", " + std::to_string(unknown) + " unknown";
    if (undone > 0) text += ", " + std::to_string(undone) + " compensated";
    put(Line().add(Tint::dim, trunk + "effect: " + kind + " · ").add(text));
  }

  void effect(const Value& node, const std::string& trunk) {
    const Value& effect = node["effect"];
    const std::string world(node.text("world"));
    Line line;
    const std::string kind(effect.text("effect_class"));
    const std::string head = trunk + "effect: " + kind + (kind == "read" ? "" : " · ");
    const std::string state = kind == "read"         ? ""
                              : world == "unknown"   ? "outcome unknown"
                              : world == "changed"   ? "applied"
                              : world == "unchanged" ? "not applied"
                                                     : world;
    line.add(Tint::dim, head);
    line.add(world == "unknown" ? Tint::bad : world == "changed" ? Tint::none : Tint::dim, state);
    std::string below;
    if (kind != "read" && effect["external_id"].is_string()) {
      const std::string id = "external id: " + safe(effect.text("external_id"));
      const bool put_side_call = fits(width_of(head + state + " · " + id));
      if (put_side_call) line.add(Tint::dim, " · " + id);
      // Never cut: operators search the service for it.
      if (!put_side_call) below = style_.paint(Tint::dim, trunk + id) + "\n";
    }
    if (style_.verbose) {
      const std::string call(effect.text("idempotency_key").substr(0, kKeyShown));
      const std::string ids =
          "call " + call + " · invocation " + std::string(effect.text("invocation_id"));
      below += style_.paint(Tint::dim, trunk + safe(ids)) + "\n";
    }
    put(line);
    out_ += below;
  }

  // The cost, if the agents file has prices.
  static std::string cost_of(const Value& usage) {
    if (natural(usage["cost_micros"]) == 0) return {};
    std::string text = ", cost " + amount_text(natural(usage["cost_micros"]));
    if (const std::size_t rest = natural(usage["unpriced_calls"]); rest > 0) {
      text += " and " + counted(rest, "answer") + " without a price";
    }
    return text;
  }

  // The model that answered, and its usage.
  void model(const Value& model, const std::string& trunk) {
    const std::string answered(model.text("answered"));
    const std::string unstarted_call(model.text("asked"));
    std::string text = "model " + answered + " (" + std::string(model.text("provider"));
    text += unstarted_call == answered ? ")" : ", requested as " + unstarted_call + ")";
    if (const Value& usage = model["usage"]; usage.is_object()) {
      text += ", " + std::to_string(natural(usage["input_tokens"])) + " + " +
              std::to_string(natural(usage["output_tokens"])) + " tokens (input + output)" +
              cost_of(usage);
    }
    detail(trunk, Tint::dim, text);
  }

  // The number of the attempt, if one was lost.
  std::string attempt_of(std::string_view id) const {
    const auto attempts = list(trace_["attempts"]);
    if (!lost_) return {};
    for (std::size_t i = 0; i < attempts.size(); ++i) {
      if (attempts[i].text("attempt_id") == id) return ", attempt " + std::to_string(i + 1);
    }
    return {};
  }

  void put_try(const Value& one, const std::string& trunk) {
    const std::string outcome(one.text("outcome"));
    const bool good = outcome == "success";
    const bool is_unknown = !good && outcome != "failure";
    Line line;
    line.add(Tint::dim, trunk + "try " + std::to_string(natural(one["try"])) + "  ");
    if (outcome.empty()) {
      line.add(Tint::warn, "in flight since " + short_time(one.text("started_at")));
      if (one["progress"].is_object()) {
        line.add("  " + canonical(one["progress"]["report"]));
        line.add(Tint::dim, " at " + short_time(one["progress"].text("at")));
      }
    } else {
      line.add(good         ? Tint::good
               : is_unknown ? Tint::warn
                            : Tint::bad,
               outcome == "unknown" ? "outcome unknown" : outcome);
      if (outcome == "failure" && one["definite"] != Value(true)) {
        line.add(" (may have taken effect)");
      }
    }
    const Value& error = one["error"];
    std::vector<std::string> error_lines;
    if (!error.text("code").empty()) {
      error_lines = message_lines(error_shown(error.text("code"), error.text("message")));
    }
    if (!error_lines.empty()) line.add("  error: " + error_lines[0]);
    if (one["caught_up"] == Value(true)) line.add(Tint::accent, "  recovered from its record");
    const std::string took = outcome.empty() ? "" : span_text(one["duration_us"]);
    line.add(Tint::dim, (took.empty() ? "" : "  " + took) + attempt_of(one.text("attempt")));
    put(line);
    for (std::size_t i = 1; i < error_lines.size(); ++i) {
      if (i == kErrorLines && error_lines.size() > kErrorLines + 1) {
        put(Line().add(Tint::dim,
                       trunk + "       … " + counted(error_lines.size() - i, "more line")));
        break;
      }
      put(Line().add(Tint::dim, trunk).add("       " + error_lines[i]));
    }
  }

  // An external change of the call, and its last verification.
  void change(const Value& change, const std::string& trunk) {
    const std::string verdict(change.text("verdict"));
    const Value& detail = change["detail"];
    Line line;
    line.add(Tint::dim, trunk + std::string(change.text("operation")) + " " +
                            std::string(change.text("resource_type")) + " " +
                            std::string(change.text("resource_id")));
    if (!verdict.empty()) {
      const Tint tint = verdict == "match"         ? Tint::good
                        : verdict == "unconfirmed" ? Tint::warn
                                                   : Tint::bad;
      line.add("  ").add(tint, verdict);
    }
    if (verdict == "mismatch") {
      line.add(Tint::dim, "  recorded " + std::string(detail.text("expected")) + ", now " +
                              std::string(detail.text("observed")));
    }
    if (!detail.text("reason").empty()) {
      line.add(Tint::dim, "  " + first_line(detail.text("reason")));
    }
    put(line);
  }

  void decision(const Value& decision, const std::string& trunk) {
    const std::string_view kind = decision.text("kind");
    if (kind == "confirmation" && decision.text("state") == "requested") {
      return detail(trunk, Tint::warn,
                    "confirmation requested: is the changed resource as it should be?");
    }
    const std::string by(decision.text("by"));
    const std::string reason(decision.text("reason"));
    if (kind == "branch") {
      if (decision["payload"] == Value(false)) detail(trunk, Tint::dim, "when: false");
      return;
    }
    if (kind == "retry") {
      const auto at = instant(decision["at"]);
      const auto next = instant(decision["not_before"]);
      const std::string pause = at && next ? " after " + span_text(*next - *at) : "";
      return detail(trunk, Tint::dim, "↻ retry" + pause + (reason.empty() ? "" : ": " + reason));
    }
    if (kind == "tool_choice") return put_choice(decision["payload"], trunk);
    std::string text = decided(kind, decision.text("state", kind));
    if (!by.empty()) text += " by " + by;
    if (!reason.empty()) text += ": \"" + reason + "\"";
    detail(trunk, Tint::accent, text);
    if (decision.text("state") != "edited") return;
    // The edited arguments. Never cut.
    out_ += style_.paint(Tint::dim, trunk + "  to ") +
            safe_json(canonical(decision["payload"]["arguments"])) + "\n";
  }

  // "approval requested", "approved", "resolved as happened"
  static std::string decided(std::string_view kind, std::string_view state) {
    const std::string word(state);
    if (kind == "in_doubt") return "resolved as " + word;
    return state == "requested" || state == "checked" ? std::string(kind) + " " + word : word;
  }

  // What a model chose in a turn. For hidden turns only rejections.
  void put_choice(const Value& choice, const std::string& trunk) {
    const std::size_t turn = natural(choice["turn"]);
    const std::string head = "turn " + std::to_string(turn + 1);
    if (choice["repair"].is_string()) {
      return detail(trunk, Tint::warn,
                    head + ": answer rejected: " + std::string(choice.text("repair")));
    }
    std::string names;
    bool refused = false;
    for (const Value& call : list(choice["calls"])) {
      names.append(names.empty() ? " calls " : ", ").append(call.text("name"));
      if (!call["refused"].is_object()) continue;
      refused = true;
      names.append(" (refused: ").append(call["refused"].text("code")).append(")");
    }
    if (!refused && turn >= kItemsShown) return;
    detail(trunk, refused ? Tint::warn : Tint::dim,
           head + (names.empty() ? " calls no tool" : names));
  }

  // The error message of a step's last try.
  static std::string_view last_error(const Value& node) {
    const auto tries = list(node["tries"]);
    return tries.empty() ? std::string_view() : tries.back()["error"].text("message");
  }

  void wait(const Value& node, const Value& wait, const std::string& trunk) {
    const std::string key(wait.text("correlation_key"));
    const std::string type(wait.text("wait_type"));
    const bool doubt = key.starts_with("resolve/");
    const bool open = !wait["completed_at"].is_string();
    const bool ended = trace_["ended_at"].is_string();
    if (!open) {
      if (doubt) return;  // its decision is printed
      std::string text = type == "timer" ? "timer" : type + " " + key;
      text += ": " + std::string(wait.text("outcome"));
      if (wait["by"].is_string()) text += " by " + std::string(wait.text("by"));
      const auto from = instant(wait["opened_at"]);
      const auto to = instant(wait["completed_at"]);
      if (from && to) text += " after " + span_text(*to - *from);
      if (!wait["payload"].is_null()) text += "  " + canonical(wait["payload"]);
      return detail(trunk, Tint::dim, text);
    }
    if (ended) return;
    const std::string id(trace_.text("id"));
    if (doubt) {
      const std::string reason(wait.text("reason"));
      const bool undo = node.text("role") == "compensation";
      detail(trunk, Tint::warn,
             (undo ? "it is unknown whether the step is undone"
                   : "the outcome of the call is unknown") +
                 cause_of(reason, last_error(node)));
      const std::string resolve = "aetheris resolve " + id + " " + key.substr(8, kKeyShown);
      command(trunk, "answer: ", resolve + " happened RESULT");
      command(trunk, "    or: ", resolve + " not_happened");
      return command(trunk, "    or: ", resolve + " fail");
    }
    if (type == "timer") {
      return detail(trunk, Tint::warn, "until " + short_time(wait.text("due_at")));
    }
    const std::string approval(wait.text("approval")), channel(wait.text("channel"));
    std::string text = "waiting for ";
    if (key.starts_with("approval/")) {
      text += "approval of the call";
    } else {
      text += type + (channel.empty() ? " with key " + key : " on channel " + channel);
    }
    text += " since " + short_time(wait.text("opened_at"));
    if (wait["expires_at"].is_string()) text += ", until " + short_time(wait.text("expires_at"));
    detail(trunk, Tint::warn, text);
    if (!approval.empty()) {
      command(trunk, "answer: ", "aetheris approve " + approval);
      return command(trunk, "    or: ", "aetheris reject " + approval);
    }
    const std::string to = channel.empty() ? "signal " + id + " " + quoted(key)
                                           : "message " + id + " " + quoted(channel);
    command(trunk, "answer: ", "aetheris " + to + " '{}'");
  }

  // Never cut: made to be copied.
  void command(const std::string& trunk, const std::string& how, const std::string& words) {
    out_ += style_.paint(Tint::dim, trunk + how) +
            style_.paint(Tint::bold, safe(words + style_.store_flag)) + "\n";
  }

  const Value& trace_;
  const TraceStyle& style_;
  Instant begin_, end_;
  std::size_t name_width_ = 8, tool_width_ = 0;
  bool has_tools_ = false, has_bar_ = false;
  bool lost_ = false;  // an attempt ended without a release: its process died, or lost its claim
  std::string out_;
};

}  // namespace

std::string trace_text(const Value& trace, const TraceStyle& style) {
  return Trace(trace, style).text();
}

std::string duration_shown(Duration duration) {
  const std::int64_t us = std::max<std::int64_t>(duration.count(), 0);
  const auto tenths = [](std::int64_t whole, std::int64_t tenth, const char* unit) {
    return std::to_string(whole) + "." + std::to_string(tenth) + unit;
  };
  if (us < 10'000) return tenths(us / 1'000, us / 100 % 10, " ms");
  if (us < 10'000'000) return std::to_string(us / 1'000) + " ms";
  const std::int64_t s = us / 1'000'000;
  if (s < 600) return tenths(s, us / 100'000 % 10, " s");
  if (s < 7'200) return std::to_string(s / 60) + " min";
  if (s < 172'800) return std::to_string(s / 3'600) + " h";
  return std::to_string(s / 86'400) + " d";
}

}  // namespace ae::cli
