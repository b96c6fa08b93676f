#!/usr/bin/env python3
"""runtime.hand.py TREE: the renames of group runtime that need context (one token, two meanings in one file).
Run it BEFORE apply.py with runtime.tsv. Prints each rule that matches nothing."""
import glob, pathlib, re, sys
root = pathlib.Path(sys.argv[1])
H = ["src/runtime/holder.h", "src/runtime/holder.cc"]; RT = ["src/runtime/runtime.h", "src/runtime/runtime.cc"]
ALL = "ALL"
tree = [str(p.relative_to(root)) for d in ("src", "bench") for p in (root / d).rglob("*") if p.suffix in (".h", ".cc")]
RUNTIME_TESTS = [f for f in tree if f.startswith("src/runtime/") and "_test." in f]
rules = [
  # Holder::told -> on_inbox_notify; InFlight::told -> last_reported
  (RT, r"(->)told\(\)", r"\1on_inbox_notify()"), (H, r"void (Holder::)?told\(\)", r"void \1on_inbox_notify()"),
  (H, r"std::optional<Instant> told\b", "std::optional<Instant> last_reported"),
  (H, r"return told \? \*told \+ std::max\(kReportsApart, \(\*told - sent\)", "return last_reported ? *last_reported + std::max(kReportsApart, (*last_reported - sent)"),
  (H, r"second\.told = now", "second.last_reported = now"),
  # Holder::renewed -> on_lease_renewed
  (H, r"void renewed\(", "void on_lease_renewed("), (RT, r"holder->renewed\(", "holder->on_lease_renewed("),
  # Holder::loaded -> on_loaded, Holder::seen -> on_outcome, Part::taken -> inbox_applied, Holder::ask_again -> schedule_pump, confirm -> start_checks
  (H, r"(self->|Holder::|void )loaded\(", r"\1on_loaded("), (H, r"(self->|Holder::|void )seen\(", r"\1on_outcome("),
  (H, r"std::vector<std::uint64_t> taken;", "std::vector<std::uint64_t> inbox_applied;"), (H, r"\bpart\.taken\b", "part.inbox_applied"),
  (H, r"(?<![.\w])ask_again\(", "schedule_pump("), (H, r"(?<![.\w])confirm\(", "start_checks("),
  # Runtime::hold(lease) -> start_driver; Runtime::accepted -> recheck_accepted; Runtime::put -> post_to_inbox
  (RT, r"(Runtime::|void | )hold\((store::Lease|std::move)", r"\1start_driver(\2"),
  (RT, r"(void |Runtime::| )accepted\((std::shared_ptr<Acting>|acting)", r"\1recheck_accepted(\2"),
  (RT, r"(void |Runtime::| )put\((std::shared_ptr<Acting>|acting)", r"\1post_to_inbox(\2"),
  # Versions::offered -> check_elsewhere
  (RT, r"versions_\.offered\(", "versions_.check_elsewhere("), (["src/runtime/versions.h", "src/runtime/versions.cc"], r"(void |Versions::)offered\(", r"\1check_elsewhere("),
  # Runtime::act -> submit_request (InboxEntry::act, AuditEntry::act and all data members stay)
  (RT, r"(void |Runtime::|^ +)act\((?=JobId|job)", r"\1submit_request("), (ALL, r"\b(runtime_?|runtime\(\))(\.|->)act\(", r"\1\2submit_request("),
  (RUNTIME_TESTS, r"(Result<Value> |return |this->)act\(", r"\1submit("),
  (RUNTIME_TESTS, r"(?<!runtime)(\.|->)act\(", r"\1submit("),
  # Runtime::forget -> drop_cached; Loop::forget -> cancel
  (RT, r"void forget\(const JobId& job\)", "void drop_cached(const JobId& job)"), (ALL, r"\bruntime_\.forget\(", "runtime_.drop_cached("),
  (ALL, r"\b(loop_?(?:\(\))?|life|impl_)(\.|->)forget\(", r"\1\2cancel("), (ALL, r"\b(void (?:AsioLoop::(?:Impl::)?)?)forget\((async::)?TimerId(?!&)", r"\1cancel(\2TimerId"),
  # JobCache::keep -> put
  (RT, r"resting_\.keep\(", "resting_.put("), (["src/runtime/resting.h", "src/runtime/resting.cc"], r"(void |RestingJobs::)keep\(", r"\1put("),
  (["src/runtime/inbox_test.cc"], r"resting\.keep\(", "resting.put("),
  # host().rested(job) takes the entry out
  (["src/runtime/holder.h", "src/runtime/runtime.h"], r"(std::optional<Rested> )rested\(const JobId", r"\1take_cached(const JobId"), (H, r"host_\.rested\(", "host_.take_cached("),
  # Confirmer::look -> check (Verifier::look is of the tools group)
  (["src/runtime/confirmer.h", "src/runtime/confirmer.cc"], r"void (Confirmer::)?look\(", r"void \1check("), (H, r"confirmer_->look\(", "confirmer_->check("),
  (["src/runtime/confirmer.cc"], r"(?<!->)\blook\b(?!\()", "pending"),
  # World::chance -> random
  ([f for f in tree if f.startswith("src/runtime/")], r"\bworld(_?)\.chance\b", r"world\1.random"),
  (["src/app/site.cc", "src/app/tamper_test.cc", "src/api/api_test.cc", "src/api/mcp_server_test.cc"], r"\.chance = (chance_?|here\.chance),$", r".random = \1,"),
  # Runtime::held -> leased_jobs; offers (versions.cc) -> has_offer
  (RT, r"std::size_t held\(\)", "std::size_t leased_jobs()"), (ALL, r"\b(runtime_?|runtime\(\))(\.|->)held\(\)", r"\1\2leased_jobs()"),
  (["src/runtime/versions.cc"], r"(?<![.>\w])offers\(", "has_offer("), (["src/runtime/world.h"], r"async::Chance& chance;", "async::Chance& random;"),
  # HttpCall::fresh in other folders
  (["src/tools/http/http_tool.cc"], r"http\.fresh =", "http.new_connection ="), (["src/tools/verify/http_look.cc"], r"call\.fresh =", "call.new_connection ="),
  # HttpServer::Options::full -> on_full
  (["src/net/http_server.cc"], r"options\.full\b", "options.on_full"), (["src/net/http_server_test.cc"], r"\.full = \[", ".on_full = ["), (["src/app/listener.cc"], r"http\.full =", "http.on_full ="),
  # llm: recorded(Answer) -> answer_value, recorded(Counts) -> usage_value
  ([f"src/llm/{n}" for n in ("chat_completions.cc", "conversation.cc", "conversation.h", "conversation_test.cc", "messages.cc")], r"\brecorded\((answer|const Answer& answer)\)", r"answer_value(\1)"),
  ([f"src/llm/{n}" for n in ("usage.cc", "usage.h")], r"\brecorded\(const Counts& counts\)", "usage_value(const Counts& counts)"),
  (["src/llm/chat_completions.cc", "src/llm/messages.cc"], r"return recorded\((\s*)\{", r"return usage_value(\1{"),
]
for scope, pattern, new in rules:
    n = 0
    for f in (tree if scope == ALL else scope):
        text = (root / f).read_text()
        out, k = re.subn(pattern, new, text, flags=re.M)
        n += k
        if k: (root / f).write_text(out)
    if n == 0: print("NOTHING:", pattern)
