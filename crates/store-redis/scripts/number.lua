-- Gives names numbers that never change. KEYS: 1 numbers by name. ARGV: the names.
local numbers = {}
for i, name in ipairs(ARGV) do
    local number = redis.call('HGET', KEYS[1], name)
    if not number then
        number = redis.call('HLEN', KEYS[1])
        redis.call('HSET', KEYS[1], name, number)
    end
    numbers[i] = tonumber(number)
end
return numbers
