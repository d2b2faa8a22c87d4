-- Everything about some tasks of one tag, as of one moment.
--
-- KEYS: 1 what was applied last, 2 live, 3 overlays, 4 ended, 5 progress, then for each task
-- its steps and its attempts. ARGV: 1 '1' if progress and attempts are wanted, then the tasks.
-- Answers {last, live, overlays, ended, progress, steps, attempts}.

local tasks = {unpack(ARGV, 2)}
local whole = ARGV[1] == '1'
local steps, attempts = {}, {}
for i = 1, #tasks do
    steps[i] = redis.call('HGETALL', KEYS[4 + 2 * i])
    attempts[i] = whole and redis.call('LRANGE', KEYS[5 + 2 * i], 0, -1) or {}
end
return {
    redis.call('GET', KEYS[1]) or '',
    redis.call('HMGET', KEYS[2], unpack(tasks)),
    redis.call('HMGET', KEYS[3], unpack(tasks)),
    redis.call('HMGET', KEYS[4], unpack(tasks)),
    whole and redis.call('HMGET', KEYS[5], unpack(tasks)) or {},
    steps,
    attempts,
}
