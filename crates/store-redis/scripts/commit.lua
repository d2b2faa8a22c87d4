-- Appends one entry to the log and carries out its changes, all or nothing.
--
-- KEYS: 1 log, 2 meta, 3 bell, 4 turn, 5 events, 6 touched, 7 intents, then those of the changes.
-- ARGV: 1 number, 2 the number before, 3 digest, 4 digest of the entry before as the writer knows
-- it or '', 5 node, 6 redo, 7 the writer's turn or '', 8 number of the events or '', 9 the events,
-- 10 how many tags have intents, then tag and changes of each, then the changes.
--
-- Answers {1, what was last in each tag} if it was appended, {2} if it was there already,
-- {0, last} if the number is not next, it is another node's turn, or something new is there.

local last = redis.call('HGET', KEYS[2], 'last') or '0:'
local number, digest = string.match(last, '^(%d+):(.*)$')
local holder = redis.call('GET', KEYS[4])
local is_next = number == ARGV[2] and (ARGV[4] == '' or digest == ARGV[4])

if not is_next then
    if holder and holder == ARGV[7] then
        redis.call('DEL', KEYS[4])
    end
    local id = ARGV[1] .. '-0'
    local found = redis.call('XRANGE', KEYS[1], id, id)[1]
    -- The writer lost our answer and asks again.
    if found and string.match(found[2][2], '^%x+') == ARGV[3] then
        return {2}
    end
    return {0, last}
end
if holder and holder ~= ARGV[7] then
    return {0, last}
end

local first = 11
local tags = tonumber(ARGV[10])
if knows_a_new_one(7, first + 2 * tags) then
    if holder then
        redis.call('DEL', KEYS[4])
    end
    return {0, last}
end

local own = ARGV[1] .. ':' .. ARGV[3]
local id = ARGV[1] .. '-0'
local answer = {1}
local names = ''
if tags > 0 then
    local intents = {}
    for i = 1, tags do
        local tag, changes = ARGV[first], ARGV[first + 1]
        local before = redis.call('HGET', KEYS[6], tag) or ''
        redis.call('HSET', KEYS[6], tag, own)
        intents[4 * i - 3] = tag
        intents[4 * i - 2] = before
        intents[4 * i - 1] = own
        intents[4 * i] = changes
        answer[i + 1] = before
        names = names .. tag .. ' '
        first = first + 2
    end
    redis.call('XADD', KEYS[7], id, unpack(intents))
end

local now = redis.call('TIME')[1]
local head = ARGV[3] .. ' ' .. digest .. ' ' .. ARGV[5] .. ' ' .. now
redis.call('XADD', KEYS[1], id, 'h', head, 't', names, 'r', ARGV[6])
redis.call('HSET', KEYS[2], 'last', own)
if ARGV[8] ~= '' then
    redis.call('XADD', KEYS[5], ARGV[8] .. '-0', 'e', ARGV[9])
end
run(7, first)
redis.call('XADD', KEYS[3], 'MAXLEN', '1', id, 'b', '')
if holder then
    redis.call('DEL', KEYS[4])
end
return answer
