#!/usr/bin/env python3
"""tools.pre.py TREE: before tools.tsv. Separates tokens that mean two things in one file (they get their final names here)."""
import pathlib, re, sys
root = pathlib.Path(sys.argv[1])
E = []
def P(files, *edits):
    for f in files.split():
        for rx, to in edits: E.append((f, rx, to))
M = "src/tools/mcp/"; C = "src/tools/command/"; T = "src/tools/"; A = "src/agents/"
# UnescapedViews
P(T+"layers.h", (r"Span below\(std::size_t level", "Span to_source(std::size_t level"), (r"at, below;", "at, source_at;"))
P(T+"layers.cc", (r"Layers::below\(", "Layers::to_source("), (r"= below\(level,", "= to_source(level,"), (r"\.below = static", ".source_at = static"), (r"(escape|escape\.|\(next\))(\.|->)below\b", r"\1\2source_at"), (r"&Escape::below", "&Escape::source_at"))
P(T+"secrets.cc "+T+"layers_test.cc", (r"layers\.below\(", "layers.to_source("))
# CompanionEnded::how, Ended::how
P(C+"companions.cc", (r"\bend\.how\b", "end.reason"), (r"\bend\.for_now", "end.is_transient"), (r"\bend\.started", "end.has_started"))
P(M+"stdio.cc", (r"ended\.how\b", "ended.reason"), (r"ended\.started", "ended.has_started"), (r"\.gone =", ".on_exit ="), (r"\{\.heard = \[this\]\(const std::string& bytes\)", "{.on_output = [this](const std::string& bytes)"), (r"ears_\.heard\(", "ears_.on_message("), (r"ears_\.lost\b", "ears_.on_close"), (r"ears_\.late\b", "ears_.on_late_reply"))
# Transport::Ears, Session::Ears
P(M+"transport.h", (r"\bheard;  //", "on_message;  //"), (r"^        lost;  // of all", "        on_close;  // of all"), (r"> late = \{\};", "> on_late_reply = {};"), (r"Task heard\b", "Task ready"), (r"\(heard\)", "(ready)"), (r"`heard`", "`ready`"))
P(M+"http.cc", (r"ears_\.heard\(", "ears_.on_message("), (r"Task heard\b", "Task ready"), (r"std::move\(heard\)", "std::move(ready)"), (r"auto heard = weak", "auto locked = weak"), (r"; heard && \*alive\) hear\(\*heard", "; locked && *alive) hear(*locked"))
P(M+"http.h", (r"Task heard\b", "Task ready"))
P(M+"get_stream.h "+M+"get_stream.cc", (r"Task heard\b", "Task ready"), (r"std::move\(heard\)", "std::move(ready)"))
P(M+"session.h", (r"> lost;  //", "> on_close;  //"), (r"\)> asks;", ")> on_question;"), (r"\bask\(Ask ask,", "send_request(Ask spec,"), (r"Task heard\b", "Task ready"), (r"std::move\(heard\)", "std::move(ready)"), (r"> told = \{\};", "> on_sent = {};"), (r"`told` comes", "`on_sent` comes"),
  (r"struct Answer \{", "struct AnswerSpec {"), (r"std::int64_t answer\(Answer answer\);", "std::int64_t send_answer(AnswerSpec spec);"), (r"withdraw\(std::int64_t answer\) \{ transport_->give_up\(answer\)", "withdraw_answer(std::int64_t ticket) { transport_->give_up(ticket)"), (r"`withdraw`", "`withdraw_answer`"), (r"void opened\(std::string", "void on_ready(std::string"))
P(M+"session.cc", (r"\.late =", ".on_late_reply ="), (r"\.heard =", ".on_message ="), (r"\.lost =", ".on_close ="), (r"ears_\.lost\b", "ears_.on_close"), (r"ears_\.asks\b", "ears_.on_question"), (r"Session::ask\(Ask ask,", "Session::send_request(Ask spec,"), (r"\bask\(\{", "send_request({"), (r"\bask\.", "spec."), (r"\bsaid\(", "error_text("),
  (r"Session::answer\(Answer answer\)", "Session::send_answer(AnswerSpec spec)"), (r"mcp::answer\(answer\.id, std::move\(answer\.result\)\)", "mcp::answer(spec.id, std::move(spec.result))"), (r"mcp::answer\(", "make_response("), (r"answer\.(send_within|timeout|told)", r"spec.\1"), (r"spec\.told", "spec.on_sent"), (r"\btold\b", "on_sent"), (r"Session::opened\(", "Session::on_ready("), (r"return opened\(", "return on_ready("), (r"^  opened\(version\)", "  on_ready(version)"))
P(M+"message.h "+M+"message.cc", (r"^Value answer\(", "Value make_response("))
P(M+"unreadable_test.cc", (r"canonical\(answer\(Value", "canonical(make_response(Value"), (r"\.heard =", ".on_message ="), (r"\.lost =", ".on_close ="), (r"ears\.heard\(", "ears.on_output("))
P(M+"get_stream_test.cc", (r"open\(\{\.heard =", "open({.on_message ="), (r"^(\s+)\.heard =$", r"\1.on_data ="), (r"rests = \[", "wait_idle = ["), (r"\brests\(\)", "wait_idle()"))
P(M+"server_test.cc "+M+"server_people_test.cc", (r"ears->heard\(", "ears->on_message("), (r"ears->late\(", "ears->on_late_reply("), (r"script\.heard\(\)", "script.start_listening()"), (r"script\.lost\(", "script.lose_connection("))
P(M+"hand_test.h", (r"void heard\(\) \{", "void start_listening() {"), (r"calls `heard`", "calls `start_listening`"), (r"Task heard\b", "Task ready"), (r"std::move\(heard\)", "std::move(ready)"), (r"void lost\(const", "void lose_connection(const"), (r"ears_\.lost\b", "ears_.on_close"))
P(M+"judge.cc", (r"\bunreadable\(", "invalid_result("))
# Server
P(M+"server.h", (r"void told\(", "void on_answer_sent("), (r"void lost\(", "void on_connection_lost("), (r"void keep\(", "void suspend("))
P(M+"server.cc", (r"\.lost =", ".on_close ="), (r"self->lost\(", "self->on_connection_lost("), (r"Server::lost\(", "Server::on_connection_lost("), (r"^(\s+)lost\(", r"\1on_connection_lost("), (r"\.asks =", ".on_question ="), (r"session_->ask\(", "session_->send_request("), (r"Session::Ask ask\{", "Session::Ask spec{"), (r"\bask\.header_params", "spec.header_params"), (r"std::move\(ask\)", "std::move(spec)"), (r"\(ask\.params", "(spec.params"), (r"open\.astray", "open.is_orphaned"), (r"session_->withdraw\(", "session_->withdraw_answer("),
  (r"list\(async::Done<Result<Session::Listed>> done\) \{", "list(async::Done<Result<Session::Listed>> done) {"), (r"(\(Result<Session::Listed>) listed\)", r"\1 list)"), (r"self->listed\(std::move\(listed\)\)", "self->listed(std::move(list))"), (r"if \(!listed\) return failed\(listed\.", "if (!list) return failed(list."), (r"std::move\(listed->tools\)", "std::move(list->tools)"), (r"= listed->odd", "= list->odd"), (r", listed = Session::Listed\{", ", list = Session::Listed{"), (r"done\(std::move\(listed\)\)", "done(std::move(list))"), (r"const auto listed =", "const auto tool ="), (r"\blisted ([!=])= tools_", r"tool \1= tools_"), (r"\blisted->second", "tool->second"))
P(M+"server.h", (r"on_listed\(Result<Session::Listed> listed\)|listed\(Result<Session::Listed> listed\)", "listed(Result<Session::Listed> list)"), (r"\(server_people\.cc\)", "(server_elicitation.cc)"))
P(M+"server_flight.h", (r"server\.cc and server_people\.cc", "server.cc and server_elicitation.cc"), (r"bool astray = false;", "bool is_orphaned = false;"))
P(M+"server_people.cc", (r"session_->answer\(", "session_->send_answer("), (r"\.told = ", ".on_sent = "), (r"self->told\(", "self->on_answer_sent("), (r"Server::told\(", "Server::on_answer_sent("), (r"\bkeep\(", "suspend("), (r"\bOutcome asked\)", "Outcome outcome)"), (r"answer\(key, std::move\(asked\)\)", "answer(key, std::move(outcome))"), (r"if \(auto asked = judge", "if (auto outcome = judge"), (r"\*std::move\(asked\)", "*std::move(outcome)"))
# pinned() the function
P(M+"listing.h "+M+"listing.cc "+M+"session.cc "+M+"hand_test.h "+M+"message_test.cc "+M+"server_test.cc src/app/reloader_test.cc", (r"\bpinned\(", "pin_tool("), (r"digest_of\(const Value& pinned\)", "digest_of(const Value& pinned)"))
# processes.cc
P(C+"processes.cc", (r"child\.heard\b", "child.last_heard_at"), (r"Duration heard\{\};", "Duration last_heard_at{};"), (r"const bool waits\b", "const bool is_paused"), (r"\{waits \?", "{is_paused ?"), (r"const bool said = fds", "const bool has_control = fds"), (r"if \(said\) hear", "if (has_control) hear"), (r"std::move_only_function<void\(Listener&\)>> told;", "std::move_only_function<void(Listener&)>> tasks;"), (r"told\.swap\(told_\)", "tasks.swap(told_)"), (r": told\) task\(", ": tasks) task("), (r"posix_spawnattr_t how;", "posix_spawnattr_t attributes;"), (r"&how\b", "&attributes"))
# command_tool
P(C+"command_tool.h", (r"struct World \{", "struct Dependencies {"), (r"World world", "Dependencies world"))
P(C+"command_tool.cc", (r"\bWorld world", "Dependencies world"), (r"State\(World w", "State(Dependencies w"))
# native
P(T+"native/native_pool.cc", (r"worker->left_behind", "worker->is_abandoned"), (r"bool left_behind = false", "bool is_abandoned = false"))
P(T+"native/native.cc", (r"bool began = false;", "bool has_started = false;"), (r"\bbegan \?", "has_started ?"), (r"      began = (flight\.run|run\.stage)", r"      has_started = \1"), (r"^    began = run\.stage", "    has_started = run.stage"), (r"!began\)", "!has_started)"))
P(C+"processes.h", (r"\(left_over\.h\)", "(leftovers.h)"))
P("src/tools/http/http_tool.h "+M+"session.h", (r"\bjudge\.h\)", "classify_response.h)"))
P(T+"secrets.h", (r"\(layers\.h\)", "(unescaped_views.h)"))
# http tool
P("src/app/toolbox.cc", (r"\.reads = ", ".is_read_only = "), (r"\.closed = processes_\.closed\(\)", ".denied_paths = processes_.denied_paths()"))
P(T+"verify/verify_test.cc", (r"closed = \{\};", "denied_paths = {};"), (r"folder, closed\}", "folder, denied_paths}"), (r"bench\.closed =", "bench.denied_paths ="), (r"\bseen\b", "result"), (r"Sighting look\(const", "Sighting check(const"), (r"const auto look = ", "const auto check_with = "), (r"(?<![.\w>])look\(", "check_with("))
# agents
P(A+"condition_check.h", (r"std::string fault; ", "std::string error; "))
P(A+"condition_check.cc "+A+"policy_check.cc", (r"words\.fault\b", "words.error"))
P(A+"check.h", (r"void note\(const std::string& path", "void add_note(const std::string& path"), (r"bool clouded\(", "bool may_be_unknown("))
P(A+"check.cc", (r"Check::clouded\(", "Check::may_be_unknown("), (r"const Template::Fault& fault :", "const Template::Fault& found_error :"), (r"\bfault\.(error|offset)", r"found_error.\1"))
P(A+"tool_text.cc", (r"auto& fault : found\) fault\.", "auto& error : found) error."))
P(A+"node_check.cc", (r"const SchemaFault& fault :", "const SchemaFault& violation :"), (r"\bfault\.(instance_path|message)", r"violation.\1"))
for f in "agent_check agents_file loop_check mcp_check policy_check tool_check node_check change_check model_check settings_check retry_check condition_check".split():
    P(A+f+".cc", (r"check(_?)\.note\(", r"check\1.add_note("), (r"check(_?)\.clouded\(", r"check\1.may_be_unknown("))
P(A+"agent_check.cc", (r"\bclouded\b(?!\()", "has_unknown_needs"))
P(A+"faults.h "+A+"faults.cc", (r"\bWords\b", "Details"))
# outside of the folders: only the call or override of a name of ours (the rest of the file is another table's)
P("src/sim/outside.cc", (r"void look\(Value change, async", "void check(Value change, async"))
P("src/runtime/confirmer.cc", (r"verifier->look\(", "verifier->check("))
P("src/llm/model_tool_test.cc", (r"call\.piece =", "call.on_text_delta ="))
# texts that docs.py cannot know
P("docs/guarantees.md", (r"Server::keep\b", "Server::suspend"), (r"Server::told\b", "Server::on_answer_sent"))
P("tests/mutants.cases", (r"layers\.below\(", "layers.to_source("))
P("formal/README.md", (r"(src/tools/http/judge\.h` `)judge`", r"\1classify_response`"))
for f, rx, to in E:
    p = root / f; t = p.read_text(); n, k = re.subn(rx, to, t, flags=re.M)
    if not k and "-v" in sys.argv: print("nothing:", f, rx)
    p.write_text(n)
