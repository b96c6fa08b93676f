#!/bin/bash
# store_pre.sh TREE: renames of methods whose token means other things in the same file. Run once, before apply.py with store.tsv.
cd "$1" || exit 1
S=$(git ls-files 'src/store/*.h' 'src/store/*.cc')
W="src/sim/patient_store.h src/sim/sim_store.h src/sim/witness.h src/sim/witness.cc"
# Migration::due → is_pending
perl -pi -e 's/\bdue\(\)/is_pending()/g' src/store/migration.h src/store/sqlite/migrate.cc src/cli/upkeep.cc
# Store::ended → list_ended, due → list_due, record → append_audit_entry
perl -pi -e 's/\bended\(r,/ended_ids(r,/g; s/std::string ended\(Rig/std::string ended_ids(Rig/' src/store/conformance_prune_test.h
perl -pi -e 'next if m{^\s*//}; s/\bended\(/list_ended(/g unless /"[^"]*\bended\(/; s/\bdue\(/list_due(/g; s/\brecord\((?=(?:const )?(?:store::)?AuditEntry|std::move\(entry\)|entry|\*batch\.audit|pruning\.audit|redaction\.audit)/append_audit_entry(/g; s/Method::(record)\b/Method::append_audit_entry/; s/Method::due\b/Method::list_due/; s/Method::ended\b/Method::list_ended/' $S $W
perl -pi -e 's/^  record,$/  append_audit_entry,/; s/^  due,$/  list_due,/; s/^  ended,$/  list_ended,/' src/store/faulty/faulty_store.h
perl -pi -e 's/store_\.ended\(/store_.list_ended(/' src/runtime/prune.cc
perl -pi -e 's/world_\.store\.due\(/world_.store.list_due(/' src/runtime/runtime.cc
perl -pi -e 's/\b(store_|store|memory|store\(\))\.record\((?=\{?\.at|store::|entry)/$1.append_audit_entry(/; s/\brecord\(const store::AuditEntry/append_audit_entry(const store::AuditEntry/; s/store_\.record\(entry\)/store_.append_audit_entry(entry)/; s/Method::record\b/Method::append_audit_entry/; s/\bMethod::due\b/Method::list_due/; s/\bMethod::ended\b/Method::list_ended/' $(git grep -lE 'record\(|Method::' -- 'src/runtime/*.cc' 'src/app/*.cc' 'src/api/*.cc' 'src/cli/*.cc' 'src/api/*.h' 'src/runtime/*.h')
# Store::census → count_jobs
perl -pi -e 's/\bcensus\(/count_jobs(/g; s/Method::census\b/Method::count_jobs/' $(git grep -lw census -- 'src/*.h' 'src/*.cc')
# ClaimOrder's source
perl -pi -e 's/\blines\(\)/groups()/g; s/\bheld\((?=const std::string& queue|line\.queue|queue,)/count_leased(/g; s/\.held\(queue/.count_leased(queue/g' src/store/claim_order.h src/store/memory/memory_store.cc src/store/postgres/claims.cc src/store/sqlite/tables.cc
# a claim request of the tests
perl -pi -e 's/\bwish\(/claim_request(/g' src/store/conformance_*.h src/store/*/*_test.cc
# sim
perl -pi -e 's/\b(judge_?)\.broken\(/$1.fail(/g' src/sim/check*.cc
perl -pi -e 's/void broken\(/void fail(/; s/\) broken\(std::string/) fail(std::string/' src/sim/judge.h
perl -pi -e 's/\b(errand|birth|forking)->asked\b/$1->attempts/g; s/std::uint64_t asked = 0;/std::uint64_t attempts = 0;/' src/sim/people.cc
perl -pi -e 's/worker\.lives\b/worker.life_count/g; s/std::uint64_t lives = 0/std::uint64_t life_count = 0/' src/sim/world.cc src/sim/world.h
perl -pi -e 's/\brandom\(/plan_by_number(/g' src/sim/workload.h src/sim/workload.cc src/sim/storm.cc src/sim/rebuild_test.cc
perl -pi -e 's/\b(r|rig)\.held\(/$1.leased(/g; s/Authority held\(/Authority leased(/' $(git ls-files 'src/store/*_test.h' 'src/store/*_test.cc')
perl -pi -e 's/Rig::held\(/Rig::leased(/g' $(git ls-files 'src/store/*_test.h' 'src/store/*_test.cc' src/sim/sim_test.cc)
perl -pi -e 's/\.wish = \{/.params = {/' src/store/postgres/*.cc
perl -pi -e 's/\bwish\.(check_only|patience)/options.$1/g; s/MigrationWish& wish/MigrationWish& options/' src/store/postgres/postgres_store.cc
perl -pi -e 's/->repeated\b/->is_duplicate/g' src/store/postgres/postgres_outage_test.cc
perl -pi -e 's/\.heard\(/.on_response(/g; s/\.asking\(\)/.before_request()/g' src/store/postgres/postgres_store_test.cc
perl -pi -e 's/\.again = /.retried = /; s/stats\(\)\.again\b/stats().retried/g; s/\bstats\.again\b/stats.retried/g' src/store/postgres/postgres_store.cc src/store/postgres/*_test.cc bench/*.cc
perl -pi -e 's/\bhint\.rested\b/hint.idle/g' src/runtime/runtime.cc
perl -pi -e 's/\bstore::examine\(/store::read_server_info(/g' src/app/*.cc
perl -pi -e 's/void append_audit_entry\(const store::AuditEntry/void record(const store::AuditEntry/' src/api/gate_test.cc
