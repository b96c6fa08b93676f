#!/usr/bin/env python3
"""app_by_hand.py TREE: renames of the group `app` that need context (one token with two meanings in a file).
Run it BEFORE app.tsv is applied (it works on old names). Prints patterns that matched nothing."""
import pathlib, re, sys, glob
root = pathlib.Path(sys.argv[1])
R = []
def r(files, pattern, new): R.append((files, pattern, new))
# roles: Access::look, Role::nobody, may()
r("src/api/*.cc", r"\bAccess::look\b", "Access::view")
r("src/api/roles.h", r"\blook,(\s+// jobs)", r"view,\1")
r("src/api/*.cc src/api/*.h", r"\bRole::nobody\b", "Role::none")
r("src/api/roles.h", r"\{ nobody, viewer", "{ none, viewer")
r("src/api/roles.h src/api/*.cc", r"\bmay\((?=Role |role,|call->who)", "has_access(")
# the gate
r("src/api/gate.h src/api/gate.cc src/api/gate_test.cc src/app/listener.cc", r"\bknock\(", "authenticate(")
r("src/api/gate.cc", r"\bGate::(stream|wait)\(", r"Gate::acquire_\1(")
r("src/api/gate.h", r"ApiResponse> (stream|wait)\(const Pass", r"ApiResponse> acquire_\1(const Pass")
r("src/api/gate_test.cc src/app/listener.cc", r"\b(gate(?:->|\.)|limited\.)(stream|wait)\(", r"\1acquire_\2(")
r("src/app/live.h src/app/live.cc src/api/*.cc", r"\bGate::Still\b", "Gate::StatusCallback")
# Api
r("src/api/acts.cc src/api/approvals.cc src/api/forks.cc", r"\bthis->act\(", "this->submit_request(")
r("src/api/acts.cc", r"\bApi::act\(Ask", "Api::submit_request(Ask")
r("src/api/acts.cc", r"(?<![>.:\w])act\(ask, \{", "submit_request(ask, {")
r("src/api/api.h", r"\bvoid act\(Ask", "void submit_request(Ask")
r("src/api/acts.cc", r"\bApi::answered\(", "Api::answer_duplicate(")
r("src/api/acts.cc", r"\breturn answered\(ask,", "return answer_duplicate(ask,")
r("src/api/api.h", r"\bvoid answered\(const Ask", "void answer_duplicate(const Ask")
# code only: the local or parameter `act`; Runtime::act stays
r("CODE src/api/acts.cc src/api/answered.cc src/api/answered.h src/api/approvals.cc src/api/forks.cc src/api/api.h", r"(?<!runtime_\.)(?<![\w.])\bact\b(?!\()", "control")
r("src/api/api.cc", r"\bwaiting->look\b", "waiting->attempt")
r("src/api/asked.h", r"\bLook look;", "Look attempt;")
r("src/api/api.h src/api/asked.h", r"std::shared_ptr<const bool> gone\b", "std::shared_ptr<const bool> disconnected")
r("src/api/*.cc src/api/*.h src/app/listener.cc src/app/live.cc src/app/stdio.cc", r"\b(request_|request|who|waiting)(\.|->)gone\b", r"\1\2disconnected")
r("src/app/listener.cc", r"\basked\.gone\b", "asked.disconnected")
r("src/api/api.h", r"\bvoid\(const Value&\)> note = \{\};", "void(const Value&)> on_notification = {};")
r("src/api/mcp.cc src/api/mcp_jobs.cc src/api/mcp_tools.cc src/api/mcp_server_test.cc src/app/listener.cc src/app/stdio.cc", r"\b(request|each|who|asked)\.note\b", r"\1.on_notification")
r("src/api/api.cc src/api/jobs.cc src/api/transcript.cc", r"\bturns_\.take\(", "turns_.acquire(")
r("src/api/api.h src/api/jobs.cc src/api/forks.cc", r"(?<![\w.>])created\((?=ask,|Ask )", "answer_created(")
r("src/app/join.cc", r"(?<![\w.>:])at\(", "location_text(")
r("src/api/agents.cc", r"\bApi::offer\(", "Api::set_offered_agents(")
r("src/api/agents.cc", r"(?<![.\w])offer\((?=std::move\(offers\)|offers_of)", "set_offered_agents(")
r("src/api/api.h", r"\bvoid offer\(Offers", "void set_offered_agents(Offers")
r("src/api/mcp.h src/api/mcp.cc", r"\bvoid (Mcp::)?one\(", r"void \1handle_message(")
r("src/api/mcp.cc", r"\bone\((?=std::move\()", "handle_message(")
r("src/api/stuck.h src/api/stuck.cc src/api/stuck_test.cc src/api/jobs.cc", r"(?<![\w.])stuck\((?=row|const store|job)", "find_stuck_reason(")
r("src/api/stuck.h src/api/stuck.cc src/api/stuck_test.cc src/cli/phrases_test.cc", r"(?<![\w.])unattended\((?=row|const store|job)", "unattended_reason(")
r("src/api/metrics.h src/api/metrics.cc", r"(?<![\w.])seen\((?=job|const JobId)", "track_job(")
r("src/api/api.h", r"std::shared_ptr<void> body_room\b", "std::shared_ptr<void> body_quota")
r("src/api/api.cc src/api/mcp.cc src/api/mcp_server_test.cc src/app/http_words.cc", r"\b(request|who|out)\.body_room\b", r"\1.body_quota")
# comments that the tool would change wrongly, or not at all
r("src/app/listener.cc", r"no Sec-Fetch-Site;", "no sec-fetch-site;")
r("src/api/asked.h", r"`look` reads,", "`attempt` reads,")
r("src/app/door.h", r"Fails as `ask`", "Fails as `send`")
for file, old, new in [("api/gate.h", "Gate", "Authenticator"), ("api/buckets.h", "Buckets", "RateLimiter"), ("api/answered.h", "Answered", "Duplicate answers"), ("api/lacking.h", "Lacking", "Budget shortfall"),
                       ("api/standing.h", "Standing", "JobGauges"), ("app/door.h", "Door", "ApiClient"), ("app/site.h", "Site", "Instance"), ("app/http_words.h", "HttpWords", "HTTP mapping"), ("app/join.h", "Join", "Merging"),
                       ("app/live.h", "Live", "LiveStream"), ("app/stdio.h", "Stdio", "StdioServer"), ("app/upkeep.h", "Upkeep", "Maintenance"), ("cli/journal.h", "Journal", "ServiceLog"), ("cli/following.h", "Following", "FollowRetry"), ("cli/run.h", "Run", "JobRun")]:
    r("src/" + file, r"\A// " + old + ":", "// " + new + ":")
# the client of the API
r("src/app/door.h", r"\{ read, write, make \}", "{ read, write, create }")
r("src/app/door.h", r"^// make: to write", "// create: to write")
r("src/app/*.cc src/cli/*.cc", r"\bPurpose::make\b", "Purpose::create")
r("src/cli/*.cc src/app/door.cc src/app/upkeep.cc src/app/reloader_test.cc", r"(->|\.)ask\(", r"\1send(")
r("src/app/door.h src/app/door.cc", r"Result<api::ApiResponse> ask\(const", "Result<api::ApiResponse> send(const")
r("src/app/site.h src/app/site.cc", r"api::ApiResponse (Site::)?ask\(", r"api::ApiResponse \1send(")
r("src/app/door.h src/app/door.cc", r"\bvoid start\(const api::ApiRequest", "void send_async(const api::ApiRequest")
r("src/app/door.cc", r"(?<![.\w])start\(request, \[&\]", "send_async(request, [&]")
r("src/cli/mcp.cc", r"\bdoor\.start\(", "door.send_async(")
# the instance: options that are called site
r("src/app/upkeep.h src/app/upkeep.cc", r"const RestoreSite& site\b", "const RestoreSite& request")
r("src/app/upkeep.cc", r"\bsite\.(store|from|by|nothing_lost|verify|progress)\b(?!\()", r"request.\1")
r("src/app/site.h src/app/site.cc", r"const RebuildSite& site\b", "const RebuildSite& request")
r("src/app/site.cc", r"\bsite\.(store|compare_only|job)\b(?!\()", r"request.\1")
r("src/cli/service.h src/cli/service.cc", r"SiteOptions (Service::)?site\(", r"SiteOptions \1instance_options(")
r("src/cli/serve.cc src/cli/mcp.cc src/cli/worker.cc", r"\bservice\.site\(", "service.instance_options(")
F = "src/cli/serve.cc src/cli/mcp.cc src/cli/service.cc src/cli/service.h src/cli/run_command.cc src/cli/inspect.cc"
r(F, r"\bapp::SiteOptions(&?) site\b", r"app::SiteOptions\1 site_options")
r(F, r"(?<![\w>])site\.(mode|agents|agents_folder|observer|descriptors|signing_key|fair_by|tls_key|refused|folders|create|read_agent|store|looks_only)\b(?!\()", r"site_options.\1")
r(F, r"(?<![\w>])site\.runtime\.", "site_options.runtime.")
r("src/cli/service.cc", r"\breturn site;", "return site_options;")
r("src/cli/service.cc src/cli/serve.cc", r"\bopen\(site\)", "open(site_options)")
r("src/cli/mcp.cc src/cli/run_command.cc src/cli/inspect.cc", r"\bSite::open\(std::move\(site\)\)", "Site::open(std::move(site_options))")
# the live stream
r("src/app/live.cc", r"\bthen\((?=Pending|events\.empty)", "schedule_next(")
r("src/app/live.cc", r"(?<![\w:.>])said\(", "delta_json(")
r("src/app/live.cc", r"\bgone\(\)", "disconnect_handler()")
# commands
r("CODE src/cli/looks.cc", r"(?<![.\w])said(?=\[|\.text|\})|(?<=const Value& )said\b", "delta")
r("src/cli/*.cc src/cli/*.h", r"(?<![\w.>])who\(\)", "cli_actor()")
r("src/cli/blocked.cc src/cli/commands.h src/cli/run.cc", r"(?<![\w.])answers\((?=const Value& job|api::job_body)", "answer_commands(")
r("src/cli/looks.cc src/cli/run.cc", r"\bterminal_\.say\(", "terminal_.print_stream(")
done = 0
for files, pattern, new in R:
    hits = 0
    for g in files.split():
        for f in sorted(root.glob(g)):
            t = f.read_text()
            if files.startswith("CODE"):  # neither comments nor string literals
                parts = re.split(r'("(?:[^"\\\n]|\\.)*"|//[^\n]*)', t)
                n = sum(len(re.findall(pattern, p)) for p in parts[::2])
                n_t = "".join(p if i % 2 else re.sub(pattern, new, p) for i, p in enumerate(parts))
            else:
                n_t, n = re.subn(pattern, new, t, flags=re.M)
            if n: f.write_text(n_t); hits += n
    if not hits: print("NOTHING", files, pattern)
    done += hits
print(done, "replacements")
