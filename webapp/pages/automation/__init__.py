"""Pages of what happens without anybody at the screen: schedules, and webhooks with their deliveries."""
